//! Are the settings of the sequence batcher valid?

use std::collections::BTreeSet;

use crate::error::refuse;
use crate::proto::model_sequence_batching::control::Kind;
use crate::proto::model_sequence_batching::{Control, StrategyChoice};
use crate::proto::{DataType, ModelSequenceBatching};
use crate::{ConfigError, ModelConfig};

/// Checks the settings of the sequence batcher.
pub(super) fn check(config: &ModelConfig, sequence: &ModelSequenceBatching) -> Result<(), ConfigError> {
    let model = &config.name;
    if config.caches_responses() {
        refuse!(
            "Response Cache does not currently support model {model} with sequence batching \
             scheduler. Please disable the response cache."
        );
    }
    check_names(model, sequence)?;
    let kinds =
        [Kind::ControlSequenceStart, Kind::ControlSequenceEnd, Kind::ControlSequenceReady, Kind::ControlSequenceCorrid];
    for kind in kinds {
        check_kind(model, sequence, kind)?;
    }
    match &sequence.strategy_choice {
        Some(StrategyChoice::Oldest(oldest)) => check_sizes(model, config.max_batch_size, &oldest.preferred_batch_size),
        Some(StrategyChoice::Direct(direct)) => check_slots(model, direct.minimum_slot_utilization),
        None => Ok(()),
    }
}

fn check_sizes(model: &str, max_batch_size: i32, sizes: &[i32]) -> Result<(), ConfigError> {
    for &size in sizes {
        if size <= 0 {
            refuse!("sequence batching preferred batch size must be positive for {model}");
        }
        if size > max_batch_size {
            refuse!("sequence batching preferred batch size must be <= max batch size for {model}");
        }
    }
    Ok(())
}

/// Checks the slot utilization. Triton's error text excludes 0, but 0 is the default and is accepted. NaN is refused.
fn check_slots(model: &str, minimum_slot_utilization: f32) -> Result<(), ConfigError> {
    if !(0.0..=1.0).contains(&minimum_slot_utilization) {
        refuse!("sequence batching minimum slot utilization must be in range (0.0, 1.0] for {model}");
    }
    Ok(())
}

fn check_names(model: &str, sequence: &ModelSequenceBatching) -> Result<(), ConfigError> {
    let mut seen = BTreeSet::new();
    for input in &sequence.control_input {
        if input.name.is_empty() {
            refuse!("sequence batching control tensor must have a name for {model}");
        }
        if !seen.insert(&input.name) {
            refuse!(
                "sequence batching control tensor '{}' is specified for multiple control kinds \
                 for {model}",
                input.name
            );
        }
    }
    Ok(())
}

fn check_kind(model: &str, sequence: &ModelSequenceBatching, kind: Kind) -> Result<(), ConfigError> {
    let shown = kind.as_str_name();
    let mut of_kind =
        sequence.control_input.iter().flat_map(|input| &input.control).filter(|control| control.kind == kind as i32);
    let Some(control) = of_kind.next() else { return Ok(()) };
    if kind == Kind::ControlSequenceCorrid {
        check_correlation_values(model, control)?;
    } else {
        check_values(model, control, shown)?;
    }
    if of_kind.next().is_some() {
        refuse!("sequence batching specifies multiple {shown} tensors for {model}");
    }
    if kind == Kind::ControlSequenceCorrid {
        check_correlation_type(model, control)?;
    }
    Ok(())
}

/// Checks that a START, END or READY control has a false and a true value of the same type.
fn check_values(model: &str, control: &Control, shown: &str) -> Result<(), ConfigError> {
    let given: Vec<(&str, usize)> = lengths(control).into_iter().filter(|(_, n)| *n > 0).collect();
    match given[..] {
        [] => refuse!(
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or \
             'bool_false_true' for {shown} for {model}"
        ),
        [(_, 2)] => Ok(()),
        [(field, _)] => refuse!(
            "sequence batching control '{field}' must have exactly 2 entries for {shown} for \
             {model}"
        ),
        _ => refuse!(
            "sequence batching specifies more than one from 'int32_false_true', \
             'fp32_false_true' and 'bool_false_true' for {shown} for {model}"
        ),
    }
}

fn lengths(control: &Control) -> [(&'static str, usize); 3] {
    [
        ("int32_false_true", control.int32_false_true.len()),
        ("fp32_false_true", control.fp32_false_true.len()),
        ("bool_false_true", control.bool_false_true.len()),
    ]
}

fn check_correlation_values(model: &str, control: &Control) -> Result<(), ConfigError> {
    if lengths(control).into_iter().any(|(_, length)| length > 0) {
        refuse!(
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or \
             'bool_false_true' for CONTROL_SEQUENCE_CORRID for {model}"
        );
    }
    Ok(())
}

fn check_correlation_type(model: &str, control: &Control) -> Result<(), ConfigError> {
    let allowed =
        [DataType::TypeUint64, DataType::TypeInt64, DataType::TypeUint32, DataType::TypeInt32, DataType::TypeString];
    if !allowed.contains(&control.data_type()) {
        refuse!(
            "unexpected data type for control CONTROL_SEQUENCE_CORRID for {model}. Allowed data \
             types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        );
    }
    Ok(())
}
