//! What are the defaults of a configuration?

mod groups;

pub use groups::normalise_groups;

use crate::ModelConfig;
use crate::proto::ModelVersionPolicy;
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_optimization_policy::PinnedMemoryBuffer;
use crate::proto::model_sequence_batching::StrategyChoice;
use crate::proto::model_version_policy::{Latest, PolicyChoice};

/// After this time without a request a sequence ends, if the configuration sets no time.
const SEQUENCE_IDLE_DEFAULT_US: u64 = 1_000_000;

/// Sets the defaults of a configuration, except for instance groups. `directory` is the model's directory, whose name is the default of the model's
/// name. Repeating it changes nothing. It is repeated after a backend has completed the configuration.
pub fn normalise(mut config: ModelConfig, directory: &str) -> ModelConfig {
    if config.name.is_empty() {
        directory.clone_into(&mut config.name);
    }
    config
        .version_policy
        .get_or_insert(ModelVersionPolicy { policy_choice: Some(PolicyChoice::Latest(Latest { num_versions: 1 })) });

    let batch_size_max = config.max_batch_size;
    let prefer_largest = |sizes: &mut Vec<i32>| {
        if sizes.is_empty() && batch_size_max > 0 {
            sizes.push(batch_size_max);
        }
    };
    match &mut config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(dynamic)) => {
            prefer_largest(&mut dynamic.preferred_batch_size);
        }
        Some(SchedulingChoice::SequenceBatching(sequence)) => {
            if sequence.max_sequence_idle_microseconds == 0 {
                sequence.max_sequence_idle_microseconds = SEQUENCE_IDLE_DEFAULT_US;
            }
            if let Some(StrategyChoice::Oldest(oldest)) = &mut sequence.strategy_choice {
                prefer_largest(&mut oldest.preferred_batch_size);
            }
        }
        // The models of an ensemble determine whether it is decoupled. The setting is always shown.
        Some(SchedulingChoice::EnsembleScheduling(_)) => {
            config.model_transaction_policy.get_or_insert_default();
        }
        None => {}
    }
    if !config.is_ensemble() {
        let optimization = config.optimization.get_or_insert_default();
        let pinned = PinnedMemoryBuffer { enable: true };
        optimization.input_pinned_memory.get_or_insert(pinned);
        optimization.output_pinned_memory.get_or_insert(pinned);
    }
    config
}

#[cfg(test)]
mod tests;
