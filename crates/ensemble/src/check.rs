//! Does an ensemble fit the models that it is made of?

use nerite_config::proto::model_ensembling::Step;
use nerite_config::{ModelConfig, TensorSpec, config_data_type};
use nerite_request::Status;

/// Checks a validated ensemble against the configurations of its steps' models, in their order. The texts are Triton's.
pub fn check(config: &ModelConfig, members: &[impl AsRef<ModelConfig>]) -> Result<(), Status> {
    let steps = config.ensemble_scheduling().map_or(&[][..], |ensemble| &ensemble.step);
    let mut known: Vec<Known> = config.inputs().into_iter().map(|spec| Known::of_ensemble(config, spec)).collect();
    known.extend(config.outputs().into_iter().map(|spec| Known::of_ensemble(config, spec)));
    for (step, member) in steps.iter().zip(members) {
        check_step(config, step, member.as_ref(), &mut known)?;
    }
    Ok(())
}

/// A tensor of the ensemble, as the first who named it describes it.
struct Known {
    tensor: String,
    spec: TensorSpec,
    /// Whether a batch dimension stands before its own.
    batches: bool,
    /// Who named it first.
    owner: String,
}

impl Known {
    fn of_ensemble(config: &ModelConfig, spec: TensorSpec) -> Known {
        let owner = format!("model {}", config.name);
        Known { tensor: spec.name.to_string(), spec, batches: config.batches(), owner }
    }
}

fn check_step(config: &ModelConfig, step: &Step, member: &ModelConfig, known: &mut Vec<Known>) -> Result<(), Status> {
    let (ensemble, model) = (&config.name, &step.model_name);
    if config.max_batch_size > member.max_batch_size && config.max_batch_size > 0 {
        return Err(Status::invalid(format!(
            "ensemble {ensemble} allows maximum batch size {}, but it contains model {model} which only allows maximum batch size to be \
             {}",
            config.max_batch_size, member.max_batch_size
        )));
    }
    let (inputs, outputs) = (member.inputs(), member.outputs());
    for (name, tensor) in &step.input_map {
        check_mapping(config, ("input", name), tensor, (step, member), &inputs, known)?;
    }
    for (name, tensor) in &step.output_map {
        check_mapping(config, ("output", name), tensor, (step, member), &outputs, known)?;
    }
    match inputs.iter().find(|spec| !spec.optional && !step.input_map.contains_key(spec.name.as_str())) {
        Some(unmapped) => Err(Status::invalid(format!(
            "in ensemble {ensemble}, input {} in model {model} is not mapped to any ensemble tensors",
            unmapped.name
        ))),
        None => Ok(()),
    }
}

fn check_mapping(
    config: &ModelConfig,
    (kind, name): (&str, &str),
    tensor: &str,
    (step, member): (&Step, &ModelConfig),
    specs: &[TensorSpec],
    known: &mut Vec<Known>,
) -> Result<(), Status> {
    let (ensemble, model) = (&config.name, &step.model_name);
    let Some(spec) = specs.iter().find(|spec| spec.name == name) else {
        return Err(Status::invalid(format!(
            "in ensemble {ensemble}, ensemble tensor {tensor} is {} non-existing {kind} {name} in model {model}",
            if kind == "input" { "mapping to" } else { "mapped from" }
        )));
    };
    let owner = format!("model {model}");
    let Some(first) = known.iter().find(|known| known.tensor == tensor) else {
        known.push(Known { tensor: tensor.to_owned(), spec: spec.clone(), batches: member.batches(), owner });
        return Ok(());
    };
    let inconsistent = |what: &str, there: String, here: String| {
        Err(Status::invalid(format!(
            "in ensemble {ensemble}, ensemble tensor {tensor}: inconsistent {what}: {there} is inferred from {} while {here} is inferred \
             from {owner}",
            first.owner
        )))
    };
    if first.spec.data_type != spec.data_type {
        let shown = |spec: &TensorSpec| {
            spec.data_type.map_or("TYPE_INVALID", |datatype| config_data_type(datatype).as_str_name()).to_owned()
        };
        return inconsistent("data type", shown(&first.spec), shown(spec));
    }
    // One of them may count rows in a dimension of its own, the other before it.
    let with_rows = agree(&first.spec.shape(first.batches), &spec.shape(member.batches()));
    if !with_rows && !agree(&first.spec.dims, &spec.dims) {
        return inconsistent("shape", shown(&first.spec.dims), shown(&spec.dims));
    }
    Ok(())
}

/// Whether a tensor may have both shapes; -1 stands for any size.
fn agree(a: &[i64], b: &[i64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b || *a < 0 || *b < 0)
}

fn shown(shape: &[i64]) -> String {
    let sizes: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", sizes.join(","))
}
