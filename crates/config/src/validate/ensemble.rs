//! Does data flow through an ensemble from its inputs to its outputs?

use std::collections::{BTreeMap, BTreeSet};

use crate::error::refuse;
use crate::limits::ENSEMBLE_STEPS_MAX;
use crate::proto::ModelEnsembling;
use crate::proto::model_ensembling::Step;
use crate::{ConfigError, ModelConfig};

use super::ENSEMBLE;

/// The links of one tensor of an ensemble. Steps are named by their positions: lists of the tensors on the other side of each step would grow with
/// the product of its inputs and its outputs.
#[derive(Default)]
struct Tensor {
    /// The step that writes it.
    writer: Option<usize>,
    /// Whether it is an input of the ensemble, or all tensors that it depends on are ready.
    ready: bool,
    /// The steps that read it, once for each input that it is.
    readers: Vec<usize>,
}

type Tensors<'a> = BTreeMap<&'a str, Tensor>;

/// Checks an ensemble as far as possible without its models.
pub(super) fn check(config: &ModelConfig, ensemble: &ModelEnsembling) -> Result<(), ConfigError> {
    check_fields(config, ensemble)?;
    let mut tensors = Tensors::new();
    for (index, step) in ensemble.step.iter().enumerate() {
        link(&config.name, index, step, &mut tensors)?;
    }
    mark_ready(config, &ensemble.step, &mut tensors)?;
    check_outputs(config, &ensemble.step, &tensors)?;
    check_unused(config, &tensors)
}

fn check_fields(config: &ModelConfig, ensemble: &ModelEnsembling) -> Result<(), ConfigError> {
    let name = &config.name;
    if config.platform != ENSEMBLE {
        refuse!("ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble");
    }
    if !config.instance_group.is_empty() {
        refuse!("instance group should not be specified for ensemble '{name}'");
    }
    if config.optimization.is_some() {
        refuse!("optimization should not be specified for ensemble '{name}'");
    }
    if !config.model_warmup.is_empty() {
        refuse!("model_warmup can not be specified for ensemble '{name}'");
    }
    if ensemble.step.is_empty() {
        refuse!("must specify 'step' for ensemble '{name}'");
    }
    let steps = ensemble.step.len();
    if steps > ENSEMBLE_STEPS_MAX {
        refuse!("ensemble '{name}' has {steps} steps, at most {ENSEMBLE_STEPS_MAX} are possible; give it fewer");
    }
    Ok(())
}

/// Adds a step.
fn link<'a>(ensemble: &str, index: usize, step: &'a Step, tensors: &mut Tensors<'a>) -> Result<(), ConfigError> {
    let missing = [
        ("model_name", step.model_name.is_empty()),
        ("input_map", step.input_map.is_empty()),
        ("output_map", step.output_map.is_empty()),
    ];
    if let Some((field, _)) = missing.iter().find(|(_, missing)| *missing) {
        refuse!("must specify '{field}' in step {index} of ensemble '{ensemble}'");
    }
    for output in step.output_map.values() {
        let tensor = tensors.entry(output).or_default();
        if tensor.writer.is_some() {
            refuse!(
                "ensemble tensor '{output}' can appear in an output map only once for ensemble \
                 '{ensemble}' step {index}"
            );
        }
        tensor.writer = Some(index);
    }
    for input in step.input_map.values() {
        tensors.entry(input).or_default().readers.push(index);
    }
    Ok(())
}

/// Marks all tensors that data from the ensemble's inputs reaches.
fn mark_ready<'a>(config: &'a ModelConfig, steps: &'a [Step], tensors: &mut Tensors<'a>) -> Result<(), ConfigError> {
    let mut reached = Vec::new();
    for input in &config.input {
        let Some(tensor) = tensors.get_mut(input.name.as_str()) else {
            // Triton's text has one quotation mark too many.
            refuse!("ensemble input '{}' for ensemble {}' is not used", input.name, config.name);
        };
        if !tensor.ready {
            tensor.ready = true;
            reached.push(input.name.as_str());
        }
    }
    // How many inputs of each step are not ready.
    let mut lacking: Vec<usize> = steps.iter().map(|step| step.input_map.len()).collect();
    while let Some(name) = reached.pop() {
        let readers = std::mem::take(&mut tensors.entry(name).or_default().readers);
        for &reader in &readers {
            lacking[reader] -= 1;
            if lacking[reader] > 0 {
                continue;
            }
            for output in steps[reader].output_map.values() {
                let tensor = tensors.entry(output).or_default();
                if !std::mem::replace(&mut tensor.ready, true) {
                    reached.push(output);
                }
            }
        }
        tensors.entry(name).or_default().readers = readers;
    }
    Ok(())
}

fn check_outputs(config: &ModelConfig, steps: &[Step], tensors: &Tensors<'_>) -> Result<(), ConfigError> {
    for output in &config.output {
        let Some((&name, tensor)) = tensors.get_key_value(output.name.as_str()) else {
            refuse!("ensemble output '{}' for ensemble {}' is not used", output.name, config.name);
        };
        if tensor.ready {
            continue;
        }
        let why = match first_cause(name, steps, tensors) {
            Some(cause) => {
                format!(": at least one of its depending tensors, '{cause}', is not connected")
            }
            None => String::new(),
        };
        refuse!("output '{name}' for ensemble '{}' is not written{why}", config.name);
    }
    Ok(())
}

/// The tensor farthest upstream of `from` that is not ready, if it is another one. Visited names are skipped, because steps may form a cycle.
fn first_cause<'a>(from: &'a str, steps: &'a [Step], tensors: &Tensors<'a>) -> Option<&'a str> {
    let inputs: Vec<BTreeSet<&str>> =
        steps.iter().map(|step| step.input_map.values().map(String::as_str).collect()).collect();
    let mut seen = BTreeSet::new();
    let mut cause = from;
    while let Some(next) = tensors[cause]
        .writer
        .and_then(|step| inputs[step].iter().find(|&&name| !tensors[name].ready && !seen.contains(name)))
    {
        seen.insert(*next);
        cause = next;
    }
    (cause != from).then_some(cause)
}

fn check_unused(config: &ModelConfig, tensors: &Tensors<'_>) -> Result<(), ConfigError> {
    let outputs: BTreeSet<&str> = config.output.iter().map(|output| output.name.as_str()).collect();
    for (name, tensor) in tensors {
        if !outputs.contains(name) && (!tensor.ready || tensor.readers.is_empty()) {
            refuse!("ensemble tensor '{name}' is unused in ensemble '{}'", config.name);
        }
    }
    Ok(())
}
