//! Does data flow through an ensemble from its inputs to its outputs?

use std::collections::{BTreeMap, BTreeSet};

use crate::error::refuse;
use crate::proto::ModelEnsembling;
use crate::proto::model_ensembling::Step;
use crate::{ConfigError, ModelConfig};

use super::ENSEMBLE;

/// The links of one tensor of an ensemble.
#[derive(Default)]
struct Tensor<'a> {
    /// Whether it is an output of a step's model.
    written: bool,
    /// Whether it is an input of the ensemble, or all tensors that it depends on are ready.
    ready: bool,
    /// The inputs of the step that writes it.
    needs: BTreeSet<&'a str>,
    /// The outputs of the steps that read it.
    feeds: BTreeSet<&'a str>,
}

type Tensors<'a> = BTreeMap<&'a str, Tensor<'a>>;

/// Checks an ensemble as far as possible without its models.
pub(super) fn check(config: &ModelConfig, ensemble: &ModelEnsembling) -> Result<(), ConfigError> {
    check_fields(config, ensemble)?;
    let mut tensors = Tensors::new();
    for (index, step) in ensemble.step.iter().enumerate() {
        link(&config.name, index, step, &mut tensors)?;
    }
    mark_ready(config, &mut tensors)?;
    check_outputs(config, &tensors)?;
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
    Ok(())
}

/// Adds a step: each of its outputs needs all of its inputs.
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
        if tensor.written {
            refuse!(
                "ensemble tensor '{output}' can appear in an output map only once for ensemble \
                 '{ensemble}' step {index}"
            );
        }
        tensor.written = true;
        tensor.needs.extend(step.input_map.values().map(String::as_str));
    }
    for input in step.input_map.values() {
        let outputs = step.output_map.values().map(String::as_str);
        tensors.entry(input).or_default().feeds.extend(outputs);
    }
    Ok(())
}

/// Marks all tensors that data from the ensemble's inputs reaches.
fn mark_ready<'a>(config: &'a ModelConfig, tensors: &mut Tensors<'a>) -> Result<(), ConfigError> {
    let mut reached = Vec::new();
    for input in &config.input {
        let Some(tensor) = tensors.get_mut(input.name.as_str()) else {
            // Triton's text has one quotation mark too many.
            refuse!("ensemble input '{}' for ensemble {}' is not used", input.name, config.name);
        };
        tensor.ready = true;
        reached.push(input.name.as_str());
    }
    while let Some(name) = reached.pop() {
        let next: Vec<&str> = tensors[name].feeds.iter().copied().collect();
        for output in next {
            let ready = tensors[output].needs.iter().all(|input| tensors[input].ready);
            if let Some(tensor) = tensors.get_mut(output)
                && ready
                && !tensor.ready
            {
                tensor.ready = true;
                reached.push(output);
            }
        }
    }
    Ok(())
}

fn check_outputs(config: &ModelConfig, tensors: &Tensors<'_>) -> Result<(), ConfigError> {
    for output in &config.output {
        let Some((&name, tensor)) = tensors.get_key_value(output.name.as_str()) else {
            refuse!("ensemble output '{}' for ensemble {}' is not used", output.name, config.name);
        };
        if tensor.ready {
            continue;
        }
        let why = match first_cause(name, tensors) {
            Some(cause) => {
                format!(": at least one of its depending tensors, '{cause}', is not connected")
            }
            None => String::new(),
        };
        refuse!("output '{name}' for ensemble '{}' is not written{why}", config.name);
    }
    Ok(())
}

/// The first tensor upstream that is not ready, if it is another one. Visited names are skipped, because steps may form a cycle.
fn first_cause<'a>(from: &'a str, tensors: &Tensors<'a>) -> Option<&'a str> {
    let mut seen = BTreeSet::new();
    let mut cause = from;
    while let Some(&next) = tensors[cause].needs.iter().find(|&name| !tensors[name].ready && !seen.contains(name)) {
        seen.insert(next);
        cause = next;
    }
    (cause != from).then_some(cause)
}

fn check_unused(config: &ModelConfig, tensors: &Tensors<'_>) -> Result<(), ConfigError> {
    for (name, tensor) in tensors {
        let is_output = config.output.iter().any(|output| output.name == *name);
        if !is_output && (!tensor.ready || tensor.feeds.is_empty()) {
            refuse!("ensemble tensor '{name}' is unused in ensemble '{}'", config.name);
        }
    }
    Ok(())
}
