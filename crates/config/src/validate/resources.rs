//! Can the host ever grant what the instances need to run?

use std::collections::BTreeMap;

use crate::ConfigError;
use crate::error::refuse;
use crate::proto::ModelInstanceGroup;

/// The operator's limits, `--rate-limit-resource`, by name; a resource without one
/// has as much as the neediest instance asks for.
pub type ResourceLimits = BTreeMap<String, u32>;

/// Checks the resources that all instances together name against each other and
/// against the limits.
pub fn check_resources<'a>(
    groups: impl Iterator<Item = &'a ModelInstanceGroup>,
    limits: &ResourceLimits,
) -> Result<(), ConfigError> {
    // Name to whether it is global, and the most that one instance asks for.
    let mut needed: BTreeMap<&str, (bool, u32)> = BTreeMap::new();
    let resources = groups.filter_map(|group| group.rate_limiter.as_ref()).flat_map(|rate| &rate.resources);
    for resource in resources {
        let known = needed.entry(&resource.name).or_insert((resource.global, 0));
        if known.0 != resource.global {
            refuse!(
                "Resource \"{}\" is present as both global and device-specific resource in the \
                 model configuration.",
                resource.name
            );
        }
        known.1 = known.1.max(resource.count);
    }
    for (name, (_, count)) in needed {
        if let Some(limit) = limits.get(name).filter(|limit| **limit < count) {
            refuse!(
                "Resource count for \"{name}\" is limited to {limit} which will prevent \
                 scheduling of one or more model instances, the minimum required count is {count}"
            );
        }
    }
    Ok(())
}
