//! Do the models of an ensemble fit together?

use std::collections::BTreeMap;

use crate::error::refuse;
use crate::proto::model_ensembling::Step;
use crate::proto::{DataType, ModelInput, ModelOutput};
use crate::shape::shown;
use crate::{ConfigError, ModelConfig};

/// The declared type and shape of a tensor of an ensemble, and the model that declared it first.
struct Tensor<'a> {
    /// The model, or the ensemble, that declared it first.
    model: &'a str,
    data_type: DataType,
    dims: &'a [i64],
    batches: bool,
}

type Tensors<'a> = BTreeMap<&'a str, Tensor<'a>>;

/// Checks a valid ensemble against the completed configurations of its models, and sets whether it is decoupled. `models[i]` is the model of step `i`.
pub fn compose_ensemble(mut config: ModelConfig, models: &[&ModelConfig]) -> Result<ModelConfig, ConfigError> {
    let Some(ensemble) = config.ensemble_scheduling() else { return Ok(config) };
    let steps: Vec<(&Step, &ModelConfig)> = ensemble.step.iter().zip(models.iter().copied()).collect();
    let mut tensors = own_tensors(&config);
    for (step, model) in &steps {
        check_batch(&config, step, model)?;
        check_inputs(&config, step, model, &mut tensors)?;
        check_outputs(&config, step, model, &mut tensors)?;
    }
    let decoupled = number_streams(&config, &steps)?;
    config.model_transaction_policy.get_or_insert_default().decoupled = decoupled;
    Ok(config)
}

/// The inputs and outputs that the ensemble itself declares.
fn own_tensors(config: &ModelConfig) -> Tensors<'_> {
    let batches = config.batches();
    let model = config.name.as_str();
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
fn check_batch(config: &ModelConfig, step: &Step, model: &ModelConfig) -> Result<(), ConfigError> {
    if model.max_batch_size != 0 && model.max_batch_size < config.max_batch_size {
        refuse!(
            "ensemble {} allows maximum batch size {}, but it contains model {} which only allows \
             maximum batch size to be {}",
            config.name,
            config.max_batch_size,
            step.model_name,
            model.max_batch_size
        );
    }
    Ok(())
}

fn check_inputs<'a>(
    config: &ModelConfig,
    step: &'a Step,
    model: &'a ModelConfig,
    tensors: &mut Tensors<'a>,
) -> Result<(), ConfigError> {
    let (ensemble, name) = (&config.name, &step.model_name);
    for (input, tensor) in &step.input_map {
        if !model.input.iter().any(|known| known.name == *input) {
            refuse!(
                "in ensemble {ensemble}, ensemble tensor {tensor} is mapping to non-existing input \
                 {input} in model {name}"
            );
        }
    }
    for input in &model.input {
        match step.input_map.get(&input.name) {
            Some(tensor) => agree(config, tensor, of_input(step, model, input), tensors)?,
            None if input.optional => {}
            None => refuse!(
                "in ensemble {ensemble}, input {} in model {name} is not mapped to any ensemble \
                 tensors",
                input.name
            ),
        }
    }
    Ok(())
}

fn check_outputs<'a>(
    config: &ModelConfig,
    step: &'a Step,
    model: &'a ModelConfig,
    tensors: &mut Tensors<'a>,
) -> Result<(), ConfigError> {
    for (output, tensor) in &step.output_map {
        let Some(known) = model.output.iter().find(|known| known.name == *output) else {
            refuse!(
                "in ensemble {}, ensemble tensor {tensor} is mapped from non-existing output \
                 {output} in model {}",
                config.name,
                step.model_name
            );
        };
        agree(config, tensor, of_output(step, model, known), tensors)?;
    }
    Ok(())
}

fn of_input<'a>(step: &'a Step, model: &ModelConfig, input: &'a ModelInput) -> Tensor<'a> {
    Tensor { model: &step.model_name, data_type: input.data_type(), dims: &input.dims, batches: model.batches() }
}

fn of_output<'a>(step: &'a Step, model: &ModelConfig, output: &'a ModelOutput) -> Tensor<'a> {
    Tensor { model: &step.model_name, data_type: output.data_type(), dims: &output.dims, batches: model.batches() }
}

/// Compares a model's declaration of a tensor with the earlier one.
fn agree<'a>(
    config: &ModelConfig,
    name: &'a str,
    declared: Tensor<'a>,
    tensors: &mut Tensors<'a>,
) -> Result<(), ConfigError> {
    let Some(before) = tensors.get(name) else {
        tensors.insert(name, declared);
        return Ok(());
    };
    let ensemble = &config.name;
    if before.data_type != declared.data_type {
        refuse!(
            "in ensemble {ensemble}, ensemble tensor {name}: inconsistent data type: {} is inferred \
             from model {} while {} is inferred from model {}",
            before.data_type.as_str_name(),
            before.model,
            declared.data_type.as_str_name(),
            declared.model
        );
    }
    // The shape [2] of a batching model equals the shape [-1, 2] of a model that does not batch.
    if !fits(before.dims, declared.dims) && !fits(&before.full(), &declared.full()) {
        refuse!(
            "in ensemble {ensemble}, ensemble tensor {name}: inconsistent shape: {} is inferred \
             from model {} while {} is inferred from model {}",
            shown(&before.full()),
            before.model,
            shown(&declared.full()),
            declared.model
        );
    }
    Ok(())
}

impl Tensor<'_> {
    fn full(&self) -> Vec<i64> {
        self.batches.then_some(-1).into_iter().chain(self.dims.iter().copied()).collect()
    }
}

fn fits(one: &[i64], other: &[i64]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(&a, &b)| a == b || a == -1 || b == -1)
}

/// Numbers the streams of responses. Each decoupled step starts a new stream, to which all tensors that depend on it belong. A step cannot read
/// tensors of different streams, because it is unknown which of their responses belong together.
fn number_streams(config: &ModelConfig, steps: &[(&Step, &ModelConfig)]) -> Result<bool, ConfigError> {
    let mut streams: BTreeMap<&str, usize> = config.input.iter().map(|input| (input.name.as_str(), 0)).collect();
    let mut started = 0;
    let mut waiting: Vec<&(&Step, &ModelConfig)> = steps.iter().collect();
    loop {
        let before = waiting.len();
        let mut later = Vec::new();
        for entry in waiting {
            let (step, model) = entry;
            let inputs: Option<Vec<usize>> =
                step.input_map.values().map(|tensor| streams.get(tensor.as_str()).copied()).collect();
            let Some(inputs) = inputs else {
                later.push(entry);
                continue;
            };
            let stream = one_stream(config, &step.model_name, &inputs)?;
            started += usize::from(model.decoupled());
            let stream = if model.decoupled() { started } else { stream };
            streams.extend(step.output_map.values().map(|tensor| (tensor.as_str(), stream)));
        }
        waiting = later;
        if waiting.is_empty() || waiting.len() == before {
            break;
        }
    }
    let outputs: Vec<usize> =
        config.output.iter().filter_map(|output| streams.get(output.name.as_str()).copied()).collect();
    one_stream(config, &config.name, &outputs)?;
    Ok(started != 0)
}

fn one_stream(config: &ModelConfig, reader: &str, streams: &[usize]) -> Result<usize, ConfigError> {
    let first = streams.first().copied().unwrap_or(0);
    if streams.iter().any(|stream| *stream != first) {
        refuse!(
            "in ensemble {}, step of model '{reader}' receives inputs originated from different \
             decoupled models",
            config.name
        );
    }
    Ok(first)
}

#[cfg(test)]
mod tests;
