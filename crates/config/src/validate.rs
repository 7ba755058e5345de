//! Is a configuration consistent?
//!
//! Triton checks in stages, as the facts become known: scheduling before anything is loaded ([`validate`]), inputs and outputs after the backend has
//! completed them ([`validate_tensors`]), instances once the host is known ([`validate_groups`]), states when the scheduler is created
//! ([`validate_states`]), and warmup when instances exist ([`validate_warmup`]). If there are two faults, this order decides which one a client gets,
//! so it is the same here.

mod batching;
mod ensemble;
mod files;
mod groups;
mod metrics;
mod sequence;
mod states;
mod tensors;
mod warmup;

pub use files::{check_file_names, check_label_path, no_version_to_load};
pub use groups::validate_groups;
pub use states::validate_states;
pub use tensors::validate_tensors;
pub use warmup::{WARMUP_FOLDER, check_warmup_file, validate_warmup, warmup_byte_size, warmup_failed};

use crate::error::refuse;
use crate::{ConfigError, ModelConfig};

const ENSEMBLE: &str = "ensemble";

/// Refuses a name that differs from the model's directory.
pub fn check_directory_name(config: &ModelConfig, directory: &str) -> Result<(), ConfigError> {
    if !config.name.is_empty() && config.name != directory {
        refuse!(
            "unexpected directory name '{directory}' for model '{}', directory name must equal \
             model name",
            config.name
        );
    }
    Ok(())
}

/// Checks all scheduling settings of a normalised configuration, before anything is loaded.
pub fn validate(config: &ModelConfig) -> Result<(), ConfigError> {
    if config.name.is_empty() {
        refuse!("model configuration must specify 'name'");
    }
    check_backend(config)?;
    crate::parameters::check(config)?;
    if config.max_batch_size < 0 {
        refuse!("'max_batch_size' must be non-negative value for {}", config.name);
    }
    if config.version_policy.is_none() {
        refuse!("must specify 'version policy' for {}", config.name);
    }
    if let Some(dynamic) = config.dynamic_batching() {
        batching::check(&config.name, config.max_batch_size, dynamic)?;
    }
    if let Some(sequence) = config.sequence_batching() {
        sequence::check(config, sequence)?;
    }
    if let Some(ensemble) = config.ensemble_scheduling() {
        ensemble::check(config, ensemble)?;
    } else if config.platform == ENSEMBLE {
        refuse!("ensemble scheduling must be set for ensemble {} whose platform is ensemble", config.name);
    }
    if config.decoupled() && config.caches_responses() {
        refuse!(
            "Response Cache does not currently support model {} with 'decoupled' transaction \
             policy. Please disable the response cache.",
            config.name
        );
    }
    config.latency_bound_us()?;
    config.timeout_ends_runs()?;
    config.is_bound_by_input_sizes()?;
    metrics::check(config)
}

/// Refuses a configuration with repository agents, as Triton does where an agent's library is missing. An agent may check or decrypt the model's
/// files, so it must not be skipped.
pub fn check_agents(config: &ModelConfig, model: &str) -> Result<(), ConfigError> {
    let mut agents = config.model_repository_agents.iter().flat_map(|agents| &agents.agents);
    let Some(agent) = agents.next() else { return Ok(()) };
    Err(ConfigError::Unsupported {
        text: format!(
            "model '{model}' wants the repository agent '{}' in model_repository_agents; this server has no agents, and does not skip one that may \
             check or decrypt the model's files: prepare them yourself, and remove the agent from the configuration",
            agent.name
        ),
    })
}

fn check_backend(config: &ModelConfig) -> Result<(), ConfigError> {
    let ModelConfig { name, platform, backend, .. } = config;
    if backend.is_empty() && platform != ENSEMBLE {
        refuse!("unexpected platform type '{platform}' for {name}");
    }
    if !backend.is_empty() && platform == ENSEMBLE {
        refuse!("Ensemble model '{name}' must have platform type '{platform}' and empty backend type");
    }
    if backend == "python" {
        return Ok(());
    }
    // A backend that Triton does not know may use any platform that Triton does not know.
    let owner = match platform.as_str() {
        "tensorflow_savedmodel" | "tensorflow_graphdef" => Some("tensorflow"),
        "tensorrt_plan" => Some("tensorrt"),
        "onnxruntime_onnx" => Some("onnxruntime"),
        "pytorch_libtorch" | "torch_aoti" => Some("pytorch"),
        _ => None,
    };
    let known = ["tensorflow", "tensorrt", "onnxruntime", "pytorch"].into_iter().find(|known| known == backend);
    if owner != known {
        refuse!("unexpected 'platform' and 'backend' pair, got:{platform}, {backend}");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
