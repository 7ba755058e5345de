//! How long may answers take if their requests wait for others?
//!
//! This is not one of Triton's settings. With it, the dynamic batcher's delay adapts to the load.
//!
//! ```text
//! parameters { key: "nerite.latency_bound_microseconds" value { string_value: "5000" } }
//! ```

use crate::error::refuse;
use crate::{ConfigError, ModelConfig};

/// The parameter that bounds the latency.
pub const LATENCY_BOUND: &str = "nerite.latency_bound_microseconds";

/// One minute. No client waits that long for a fuller batch.
const BOUND_MAX_US: u64 = 60_000_000;

impl ModelConfig {
    /// The bound within which the delay of the dynamic batcher adapts, if the author sets one.
    pub fn latency_bound_us(&self) -> Result<Option<u64>, ConfigError> {
        let Some(text) = self.parameter(LATENCY_BOUND) else { return Ok(None) };
        let model = &self.name;
        let Some(dynamic) = self.dynamic_batching() else {
            refuse!("parameter '{LATENCY_BOUND}' of model '{model}' has no effect without 'dynamic_batching'");
        };
        if dynamic.max_queue_delay_microseconds > 0 {
            refuse!(
                "model '{model}' has 'max_queue_delay_microseconds: {}' and parameter '{LATENCY_BOUND}', which sets the delay; it can have one of them",
                dynamic.max_queue_delay_microseconds
            );
        }
        match text.trim().parse() {
            Ok(bound) if (1..=BOUND_MAX_US).contains(&bound) => Ok(Some(bound)),
            _ => refuse!(
                "parameter '{LATENCY_BOUND}' of model '{model}' is a number of microseconds from 1 to {BOUND_MAX_US}, got '{text}'"
            ),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    #[track_caller]
    fn check(value: &str, scheduling: &str, expect: Result<u64, &str>) {
        let parameter =
            format!("parameters {{ key: 'nerite.latency_bound_microseconds' value {{ string_value: '{value}' }} }}");
        let config =
            crate::parse_text("", format!("name: 'm' backend: 'x' {scheduling} {parameter}").as_bytes()).unwrap();
        let checked = crate::validate(&crate::normalise(config.clone(), "m")).map_err(|error| error.to_string());
        match expect {
            Ok(bound) => {
                checked.unwrap();
                assert_eq!(config.latency_bound_us().unwrap(), Some(bound));
            }
            Err(text) => assert!(checked.clone().unwrap_err().contains(text), "{checked:?}"),
        }
    }

    #[test]
    fn a_bound_is_a_number_of_microseconds_beside_dynamic_batching_alone() {
        let dynamic = "max_batch_size: 4 dynamic_batching { }";
        check("5000", dynamic, Ok(5000));
        check(" 60000000 ", dynamic, Ok(60_000_000));
        check("60000001", dynamic, Err("from 1 to 60000000, got '60000001'"));
        check("0", dynamic, Err("got '0'"));
        check("soon", dynamic, Err("got 'soon'"));
        check("5000", "", Err("has no effect without 'dynamic_batching'"));
        let both = "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 7 }";
        check("5000", both, Err("has 'max_queue_delay_microseconds: 7' and parameter"));
    }
}
