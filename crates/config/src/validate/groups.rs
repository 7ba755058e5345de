//! Can the instances run where they are configured?

use crate::error::refuse;
use crate::host::HostFacts;
use crate::limits::INSTANCES_MAX;
use crate::proto::ModelInstanceGroup;
use crate::proto::model_instance_group::Kind;
use crate::{ConfigError, ModelConfig};

const TENSORRT: &str = "tensorrt_plan";

/// Checks normalised instance groups against the host.
pub fn validate_groups(config: &ModelConfig, host: &HostFacts) -> Result<(), ConfigError> {
    if config.is_ensemble() {
        return Ok(());
    }
    if config.instance_group.is_empty() {
        refuse!("must specify one or more 'instance group's for {}", config.name);
    }
    let usable = host.usable_gpus();
    for group in &config.instance_group {
        check_place(config, group, host, &usable)?;
        check_profile(config, group)?;
    }
    check_counts(config)
}

fn check_counts(config: &ModelConfig) -> Result<(), ConfigError> {
    let mut instances = 0u64;
    for group in &config.instance_group {
        let (count, name, model) = (group.count, &group.name, &config.name);
        let Ok(count) = u64::try_from(count) else {
            refuse!(
                "instance group {name} of model {model} has count {count}, which is below 0; leave it out for the default"
            );
        };
        // One instance for each GPU. The product cannot overflow: 31 bits times a number of elements that fit into memory.
        instances = instances.saturating_add(count.saturating_mul(group.gpus.len().max(1) as u64));
    }
    if instances > INSTANCES_MAX {
        refuse!(
            "model {} asks for {instances} instances in its instance groups, at most {INSTANCES_MAX} are possible; lower \
             'count'",
            config.name
        );
    }
    Ok(())
}

fn check_place(
    config: &ModelConfig,
    group: &ModelInstanceGroup,
    host: &HostFacts,
    usable: &[i32],
) -> Result<(), ConfigError> {
    let who = format!("instance group {} of model {}", group.name, config.name);
    match group.kind() {
        Kind::Model | Kind::Cpu if !group.gpus.is_empty() => {
            refuse!("{who} has kind {} but specifies one or more GPUs", group.kind().as_str_name())
        }
        Kind::Model | Kind::Cpu => Ok(()),
        Kind::Gpu if !host.gpu_support => {
            let (gap, why) = (if host.no_support.is_empty() { "" } else { ": " }, &host.no_support);
            refuse!("{who} has kind KIND_GPU but server does not support GPUs{gap}{why}")
        }
        Kind::Gpu if group.gpus.is_empty() && usable.is_empty() => {
            refuse!("{who} has kind KIND_GPU but no GPUs are available")
        }
        Kind::Gpu if group.gpus.is_empty() => {
            refuse!("{who} has kind KIND_GPU but specifies no GPUs")
        }
        Kind::Gpu => match group.gpus.iter().find(|gpu| !usable.contains(gpu)) {
            None => Ok(()),
            Some(gpu) => {
                let usable: Vec<String> = usable.iter().map(i32::to_string).collect();
                refuse!(
                    "{who} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the \
                     minimum required CUDA compute compatibility of {:.6} are: {}",
                    host.min_compute_capability,
                    usable.join(", ")
                )
            }
        },
        Kind::Auto => Err(ConfigError::Internal { text: format!("{who} has unexpected kind KIND_AUTO") }),
    }
}

fn check_profile(config: &ModelConfig, group: &ModelInstanceGroup) -> Result<(), ConfigError> {
    let (name, model, platform) = (&group.name, &config.name, &config.platform);
    if !group.profile.is_empty() && platform != TENSORRT {
        refuse!(
            // Triton's text lacks a space here.
            "instance group {name} of model {model} and platform {platform}specifies profile \
             field which is only supported for TensorRT models"
        );
    }
    match group.profile.iter().find(|profile| profile.parse::<u32>().is_err()) {
        Some(profile) => refuse!(
            "instance group {name} of model {model} and platform {platform} specifies invalid \
             profile {profile}. The field should contain the string representation of a \
             non-negative integer."
        ),
        None => Ok(()),
    }
}
