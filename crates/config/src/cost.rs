//! What does the author of a model for a compiled backend say about the time of its runs?
//!
//! This is not one of Triton's settings. A compiled backend has no function to report such a bound. Without this setting its runs go to worker
//! threads, which have to be woken.
//!
//! ```text
//! parameters { key: "nerite.cost_bound" value { string_value: "input_sizes" } }
//! ```

use crate::error::refuse;
use crate::{ConfigError, ModelConfig};

/// The parameter.
pub const COST_BOUND: &str = "nerite.cost_bound";

/// Its only value: the sizes of the inputs bound the time of a run, whatever their values, and a run does not wait for others.
const INPUT_SIZES: &str = "input_sizes";

impl ModelConfig {
    /// Whether the author says that the sizes of the inputs bound the time of a run.
    pub fn is_bound_by_input_sizes(&self) -> Result<bool, ConfigError> {
        let Some(text) = self.parameter(COST_BOUND) else { return Ok(false) };
        let model = &self.name;
        if text != INPUT_SIZES {
            refuse!("parameter '{COST_BOUND}' of model '{model}' can only be '{INPUT_SIZES}', got '{text}'");
        }
        if self.decoupled() {
            refuse!(
                "parameter '{COST_BOUND}' cannot be set for model '{model}', which is decoupled: its runs wait for clients that do not read"
            );
        }
        Ok(true)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    #[track_caller]
    fn check(value: &str, more: &str, expect: Result<(), &str>) {
        let parameter = format!("parameters {{ key: 'nerite.cost_bound' value {{ string_value: '{value}' }} }}");
        let config = crate::parse_text("", format!("name: 'm' backend: 'x' {more} {parameter}").as_bytes()).unwrap();
        let checked = crate::validate(&crate::normalise(config.clone(), "m")).map_err(|error| error.to_string());
        match expect {
            Ok(()) => {
                checked.unwrap();
                assert!(config.is_bound_by_input_sizes().unwrap());
            }
            Err(text) => assert!(checked.clone().unwrap_err().contains(text), "{checked:?}"),
        }
    }

    #[test]
    fn a_bound_is_that_of_the_input_sizes_and_of_no_decoupled_model() {
        check("input_sizes", "", Ok(()));
        check("none", "", Err("can only be 'input_sizes', got 'none'"));
        check("input_sizes", "model_transaction_policy { decoupled: true }", Err("which is decoupled"));
        let bare = crate::parse_text("", b"name: 'm' backend: 'x'").unwrap();
        assert!(!bare.is_bound_by_input_sizes().unwrap());
    }
}
