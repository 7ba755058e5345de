//! Which parameters of a model does the server itself read?
//!
//! Parameters are for the backend, so any key is allowed. Keys that begin with `nerite.` are for the server. An unknown one is refused, because a
//! misspelt key would have no effect. Triton's key for a batching strategy in a library is refused too: without the library, batches would form in another way.

use crate::cost::COST_BOUND;
use crate::error::refuse;
use crate::latency::LATENCY_BOUND;
use crate::padding::{PAD, PAD_VALUE};
use crate::timeout::TIMEOUT_ENDS_RUNS;
use crate::{ConfigError, ModelConfig, did_you_mean, nearest};

/// The prefix of the keys of the server's own parameters.
const PREFIX: &str = "nerite.";

/// The keys of all of the server's own parameters.
const KNOWN: [&str; 5] = [COST_BOUND, LATENCY_BOUND, PAD, PAD_VALUE, TIMEOUT_ENDS_RUNS];

/// Triton's key that names a library which decides which requests share a batch.
const BATCH_STRATEGY: &str = "TRITON_BATCH_STRATEGY_PATH";

/// Refuses unknown keys with the server's prefix, and [`BATCH_STRATEGY`].
pub(crate) fn check(config: &ModelConfig) -> Result<(), ConfigError> {
    if config.parameters.contains_key(BATCH_STRATEGY) {
        refuse!(
            "batching strategies in libraries are not supported; remove the parameter '{BATCH_STRATEGY}' of model '{}'",
            config.name
        );
    }
    let mut keys: Vec<&String> = config.parameters.keys().collect();
    keys.sort();
    let unknown = keys.into_iter().find(|key| key.starts_with(PREFIX) && !KNOWN.contains(&key.as_str()));
    let Some(key) = unknown else { return Ok(()) };
    let meant = did_you_mean(nearest(key, KNOWN.into_iter()));
    refuse!(
        "parameter '{key}' of model '{}' is none of the server's, which are {}{meant}",
        config.name,
        KNOWN.join(", ")
    );
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_key(key: &str, expect: Option<&str>) {
        let text = format!("name: 'm' parameters {{ key: '{key}' value {{ string_value: '1' }} }}");
        let refused = check(&crate::parse_text("", text.as_bytes()).unwrap()).err().map(|error| error.to_string());
        assert_eq!(refused.is_some(), expect.is_some(), "{refused:?}");
        let refused = refused.unwrap_or_default();
        assert!(refused.contains(expect.unwrap_or_default()), "{refused}");
    }

    #[test]
    fn a_batching_strategy_is_refused() {
        let refused = "not supported; remove the parameter 'TRITON_BATCH_STRATEGY_PATH' of model 'm'";
        check_key(BATCH_STRATEGY, Some(refused));
    }

    #[test]
    fn a_misspelt_key_is_refused_and_a_backends_is_not() {
        check_key("nerite.pad", None);
        check_key("anything.else", None);
        check_key("nerite.pads", Some("did you mean 'nerite.pad'?"));
        check_key(
            "nerite.",
            Some(
                "is none of the server's, which are nerite.cost_bound, nerite.latency_bound_microseconds, nerite.pad, \
                  nerite.pad_value, nerite.timeout_ends_runs",
            ),
        );
    }
}
