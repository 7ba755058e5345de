//! Does an ensemble fit the models that it is made of?

use std::collections::{BTreeMap, VecDeque};

use nerite_config::ModelConfig;
use nerite_config::proto::model_ensembling::Step;
use nerite_config::proto::{DataType, ModelInput, ModelOutput};
use nerite_request::Status;

use crate::batch_dimension::fits;

/// Checks a validated ensemble against the configurations of its steps' models, in their order. The rules and texts are Triton's.
pub fn check(config: &ModelConfig, members: &[impl AsRef<ModelConfig>]) -> Result<(), Status> {
    let steps = config.ensemble_scheduling().map_or(&[][..], |ensemble| &ensemble.step);
    let mut tensors = own_tensors(config);
    for (step, member) in steps.iter().zip(members) {
        check_batch(config, step, member.as_ref())?;
        check_inputs(config, step, member.as_ref(), &mut tensors)?;
        check_outputs(config, step, member.as_ref(), &mut tensors)?;
    }
    let decoupled: Vec<bool> = members.iter().map(|member| member.as_ref().decoupled()).collect();
    check_streams(config, steps, &decoupled, &tensors)
}

/// A tensor of the ensemble, as the model that named it first declares it.
struct Tensor<'a> {
    /// The model, or the ensemble, that named it first.
    model: &'a str,
    data_type: DataType,
    dims: &'a [i64],
    batches: bool,
}

type Tensors<'a> = BTreeMap<&'a str, Tensor<'a>>;

impl<'a> Tensor<'a> {
    fn of_input(step: &'a Step, model: &ModelConfig, input: &'a ModelInput) -> Tensor<'a> {
        Tensor { model: &step.model_name, data_type: input.data_type(), dims: &input.dims, batches: model.batches() }
    }

    fn of_output(step: &'a Step, model: &ModelConfig, output: &'a ModelOutput) -> Tensor<'a> {
        Tensor { model: &step.model_name, data_type: output.data_type(), dims: &output.dims, batches: model.batches() }
    }

    /// The shape with the batch dimension.
    fn full(&self) -> Vec<i64> {
        self.batches.then_some(-1).into_iter().chain(self.dims.iter().copied()).collect()
    }
}

/// The inputs and outputs that the ensemble itself declares.
fn own_tensors(config: &ModelConfig) -> Tensors<'_> {
    let (model, batches) = (config.name.as_str(), config.batches());
    let inputs = config.input.iter().map(|input| {
        let dims = input.reshape.as_ref().map_or(&input.dims, |reshape| &reshape.shape);
        (input.name.as_str(), Tensor { model, data_type: input.data_type(), dims, batches })
    });
    let outputs = config.output.iter().map(|output| {
        let dims = output.reshape.as_ref().map_or(&output.dims, |reshape| &reshape.shape);
        (output.name.as_str(), Tensor { model, data_type: output.data_type(), dims, batches })
    });
    // A tensor that is both input and output is entered as the input.
    outputs.chain(inputs).collect()
}

/// A batching ensemble may contain a model without batching if the shapes fit.
fn check_batch(config: &ModelConfig, step: &Step, member: &ModelConfig) -> Result<(), Status> {
    if member.max_batch_size == 0 || member.max_batch_size >= config.max_batch_size {
        return Ok(());
    }
    Err(Status::invalid(format!(
        "ensemble {} allows maximum batch size {}, but it contains model {} which only allows maximum batch size to be {}",
        config.name, config.max_batch_size, step.model_name, member.max_batch_size
    )))
}

fn check_inputs<'a>(
    config: &ModelConfig,
    step: &'a Step,
    member: &'a ModelConfig,
    tensors: &mut Tensors<'a>,
) -> Result<(), Status> {
    let (ensemble, model) = (&config.name, &step.model_name);
    for (input, tensor) in &step.input_map {
        if !member.input.iter().any(|known| known.name == *input) {
            return Err(Status::invalid(format!(
                "in ensemble {ensemble}, ensemble tensor {tensor} is mapping to non-existing input {input} in model {model}"
            )));
        }
    }
    for input in &member.input {
        match step.input_map.get(&input.name) {
            Some(tensor) => agree(config, tensor, Tensor::of_input(step, member, input), tensors)?,
            None if input.optional => {}
            None => {
                return Err(Status::invalid(format!(
                    "in ensemble {ensemble}, input {} in model {model} is not mapped to any ensemble tensors",
                    input.name
                )));
            }
        }
    }
    Ok(())
}

fn check_outputs<'a>(
    config: &ModelConfig,
    step: &'a Step,
    member: &'a ModelConfig,
    tensors: &mut Tensors<'a>,
) -> Result<(), Status> {
    for (output, tensor) in &step.output_map {
        let Some(known) = member.output.iter().find(|known| known.name == *output) else {
            return Err(Status::invalid(format!(
                "in ensemble {}, ensemble tensor {tensor} is mapped from non-existing output {output} in model {}",
                config.name, step.model_name
            )));
        };
        agree(config, tensor, Tensor::of_output(step, member, known), tensors)?;
    }
    Ok(())
}

/// Compares a model's declaration of a tensor with the first one.
fn agree<'a>(
    config: &ModelConfig,
    name: &'a str,
    declared: Tensor<'a>,
    tensors: &mut Tensors<'a>,
) -> Result<(), Status> {
    let Some(first) = tensors.get(name) else {
        tensors.insert(name, declared);
        return Ok(());
    };
    let inconsistent = |what: &str, there: &str, here: &str| {
        Err(Status::invalid(format!(
            "in ensemble {}, ensemble tensor {name}: inconsistent {what}: {there} is inferred from model {} while {here} is inferred from \
             model {}",
            config.name, first.model, declared.model
        )))
    };
    if first.data_type != declared.data_type {
        return inconsistent("data type", first.data_type.as_str_name(), declared.data_type.as_str_name());
    }
    // The shape [2] of a batching model equals the shape [-1,2] of a model that does not batch.
    if !fits(first.dims, declared.dims) && !fits(&first.full(), &declared.full()) {
        return inconsistent("shape", &shown(&first.full()), &shown(&declared.full()));
    }
    Ok(())
}

fn shown(shape: &[i64]) -> String {
    let sizes: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", sizes.join(","))
}

/// Refuses a step, or an output of the ensemble, that joins answers of different decoupled steps: it is unknown which
/// of them belong together.
///
/// Each decoupled step begins a stream of answers. All tensors that are made of these answers belong to it. The inputs
/// of the ensemble are stream 0.
fn check_streams(
    config: &ModelConfig,
    steps: &[Step],
    decoupled: &[bool],
    tensors: &Tensors<'_>,
) -> Result<(), Status> {
    let mut readers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut lacking = Vec::with_capacity(steps.len());
    for (at, step) in steps.iter().enumerate() {
        lacking.push(step.input_map.len());
        step.input_map.values().for_each(|tensor| readers.entry(tensor).or_default().push(at));
    }
    let mut streams: BTreeMap<&str, usize> = config.input.iter().map(|input| (input.name.as_str(), 0)).collect();
    let mut made: VecDeque<&str> = streams.keys().copied().collect();
    let mut begun = 0;
    while let Some(tensor) = made.pop_front() {
        for &at in readers.get(tensor).into_iter().flatten() {
            lacking[at] -= 1;
            if lacking[at] != 0 {
                continue;
            }
            let step = &steps[at];
            // Triton names the first model that declared the output. For an output of the ensemble that is the
            // ensemble.
            let output = step.output_map.values().next().and_then(|output| tensors.get(output.as_str()));
            let reader = output.map_or(step.model_name.as_str(), |tensor| tensor.model);
            let mut stream = one_stream(config, reader, step.input_map.values().map(String::as_str), &streams)?;
            if decoupled[at] {
                begun += 1;
                stream = begun;
            }
            for output in step.output_map.values() {
                if streams.insert(output, stream).is_none() {
                    made.push_back(output);
                }
            }
        }
    }
    one_stream(config, &config.name, config.output.iter().map(|output| output.name.as_str()), &streams).map(drop)
}

/// The stream to which all of these tensors belong.
fn one_stream<'a>(
    config: &ModelConfig,
    reader: &str,
    tensors: impl Iterator<Item = &'a str>,
    streams: &BTreeMap<&str, usize>,
) -> Result<usize, Status> {
    let mut found = tensors.filter_map(|tensor| streams.get(tensor).copied());
    let first = found.next().unwrap_or(0);
    if found.all(|stream| stream == first) {
        return Ok(first);
    }
    Err(Status::invalid(format!(
        "in ensemble {}, step of model '{reader}' receives inputs originated from different decoupled models",
        config.name
    )))
}

#[cfg(test)]
mod tests;
