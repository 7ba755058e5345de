//! Does a request's timeout end its run as well?
//!
//! This is not one of Triton's settings. In Triton, a timeout bounds only the time in the queue.
//!
//! ```text
//! parameters { key: "nerite.timeout_ends_runs" value { string_value: "true" } }
//! ```

use crate::error::refuse;
use crate::{ConfigError, ModelConfig};

/// The parameter with which timeouts end runs.
pub const TIMEOUT_ENDS_RUNS: &str = "nerite.timeout_ends_runs";

impl ModelConfig {
    /// Whether the timeout of a request bounds the request as a whole.
    pub fn timeout_ends_runs(&self) -> Result<bool, ConfigError> {
        let text = self.parameter(TIMEOUT_ENDS_RUNS).unwrap_or_default();
        match text.trim().to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Ok(true),
            "false" | "0" | "no" | "off" | "" => Ok(false),
            _ => refuse!("parameter '{TIMEOUT_ENDS_RUNS}' of model '{}' is 'true' or 'false', got '{text}'", self.name),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    #[track_caller]
    fn check(parameter: &str, expect: Result<bool, &str>) {
        let config = crate::parse_text("", format!("name: 'm' backend: 'x' {parameter}").as_bytes()).unwrap();
        let checked = crate::validate(&crate::normalise(config.clone(), "m")).map_err(|error| error.to_string());
        match expect {
            Ok(ends) => {
                checked.unwrap();
                assert_eq!(config.timeout_ends_runs().unwrap(), ends);
            }
            Err(text) => assert_eq!(checked.unwrap_err(), text),
        }
    }

    #[test]
    fn it_is_true_or_false_and_false_if_nobody_says() {
        let with_value = |value: &str| {
            format!("parameters {{ key: 'nerite.timeout_ends_runs' value {{ string_value: '{value}' }} }}")
        };
        check("", Ok(false));
        check(&with_value("true"), Ok(true));
        check(&with_value(" Yes "), Ok(true));
        check(&with_value("off"), Ok(false));
        check(
            &with_value("1000"),
            Err("parameter 'nerite.timeout_ends_runs' of model 'm' is 'true' or 'false', got '1000'"),
        );
    }
}
