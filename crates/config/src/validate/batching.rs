//! Are the settings of the dynamic batcher valid?

use crate::ConfigError;
use crate::error::refuse;
use crate::proto::model_queue_policy::TimeoutAction;
use crate::proto::{ModelDynamicBatching, ModelQueuePolicy};

/// Checks the settings of the dynamic batcher.
pub(super) fn check(model: &str, max_batch_size: i32, dynamic: &ModelDynamicBatching) -> Result<(), ConfigError> {
    for &size in &dynamic.preferred_batch_size {
        if size <= 0 {
            refuse!("dynamic batching preferred size must be positive for {model}");
        }
        if size > max_batch_size {
            refuse!("dynamic batching preferred size must be <= max batch size for {model}");
        }
    }
    check_priorities(model, dynamic)?;
    if dynamic.preserve_ordering {
        check_ordering(model, dynamic)?;
    }
    Ok(())
}

fn check_priorities(model: &str, dynamic: &ModelDynamicBatching) -> Result<(), ConfigError> {
    let levels = dynamic.priority_levels;
    if levels == 0 {
        return Ok(());
    }
    if !(1..=levels).contains(&dynamic.default_priority_level) {
        refuse!("default priority level must be in range [1, {levels}] for {model}");
    }
    if dynamic.priority_queue_policy.keys().any(|level| !(1..=levels).contains(level)) {
        refuse!("priority queue policy must have priority level in range [1, {levels}] for {model}");
    }
    Ok(())
}

/// Refuses settings that would let one request overtake another.
fn check_ordering(model: &str, dynamic: &ModelDynamicBatching) -> Result<(), ConfigError> {
    if dynamic.priority_levels > 1 {
        refuse!("Only one priority level is allowed when 'preserve_ordering' is true for {model}");
    }
    let delays = |policy: &ModelQueuePolicy| {
        policy.default_timeout_microseconds != 0 && policy.timeout_action() == TimeoutAction::Delay
    };
    let mut policies = dynamic.default_queue_policy.iter().chain(dynamic.priority_queue_policy.values());
    if policies.any(delays) {
        refuse!(
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true \
             for {model}"
        );
    }
    Ok(())
}
