//! Are the implicit states of a sequence valid?

use std::collections::BTreeSet;

use crate::error::refuse;
use crate::proto::model_sequence_batching::{InitialState, State};
use crate::{ConfigError, ModelConfig};

/// Checks the implicit states of a sequence batcher, except for files.
pub fn validate_states(config: &ModelConfig) -> Result<(), ConfigError> {
    let Some(sequence) = config.sequence_batching() else { return Ok(()) };
    let mut seen = BTreeSet::new();
    for state in &sequence.state {
        let name = &state.input_name;
        match &state.initial_state[..] {
            [] => {}
            [initial] => {
                check_identity(state, initial)?;
                if !seen.insert(name) {
                    refuse!("State input name '{name}' specified more than once.");
                }
                check_dims(state, initial)?;
                if initial.state_data.is_none() {
                    // Triton's text lacks a space here.
                    refuse!("initial_state setting expects state'{name}' to have state_data set");
                }
            }
            several => refuse!(
                "initial_state field for state input '{name}' must contain exactly one or zero \
                 element. Found '{}' elements.",
                several.len()
            ),
        }
    }
    Ok(())
}

fn check_identity(state: &State, initial: &InitialState) -> Result<(), ConfigError> {
    let name = &state.input_name;
    if initial.data_type != state.data_type {
        refuse!(
            "The data type used for 'initial_state' field of state '{name}' does not match the \
             state data type."
        );
    }
    if initial.name.is_empty() {
        refuse!("Field 'name' must be set when using initial_state for state input '{name}'.");
    }
    Ok(())
}

fn check_dims(state: &State, initial: &InitialState) -> Result<(), ConfigError> {
    let name = &state.input_name;
    if initial.dims.len() != state.dims.len() {
        refuse!(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions \
             for state input '{name}'. {} != {}",
            initial.dims.len(),
            state.dims.len()
        );
    }
    for (&given, &declared) in initial.dims.iter().zip(&state.dims) {
        if given == -1 {
            refuse!("'initial_state' field for state input name '{name}' contains variable dimensions.");
        }
        if declared != -1 && given != declared {
            refuse!(
                "'initial_state' dim for input name '{name}' doesn't match 'state' dim \
                 description. {given} != {declared}"
            );
        }
    }
    Ok(())
}
