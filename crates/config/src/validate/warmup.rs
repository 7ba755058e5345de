//! Are the warmup requests valid?

use nerite_tensor::DataType;

use crate::error::refuse;
use crate::proto::model_warmup::Input;
use crate::{ConfigError, ModelConfig, tensor_data_type};

/// The directory, in the model's directory, of the files for warmup inputs.
pub const WARMUP_FOLDER: &str = "warmup";

/// Synthetic strings are empty: each has four bytes for its length.
const EMPTY_STRING_BYTES: i64 = 4;

/// Checks the warmup samples, except for files. A sample with batch size 0 is skipped.
pub fn validate_warmup(config: &ModelConfig) -> Result<(), ConfigError> {
    for sample in config.model_warmup.iter().filter(|sample| sample.batch_size != 0) {
        for (name, input) in &sample.inputs {
            warmup_byte_size(name, input)?;
            if input.input_data_type.is_none() {
                refuse!("warmup setting expects input '{name}' to have input_data_type set");
            }
        }
    }
    Ok(())
}

/// Size of one item of a warmup input in bytes.
pub fn warmup_byte_size(name: &str, input: &Input) -> Result<i64, ConfigError> {
    if input.dims.iter().any(|&dim| dim < 0) {
        refuse!("warmup setting expects all variable-size dimensions are specified for input '{name}'");
    }
    let element =
        tensor_data_type(input.data_type).and_then(DataType::size).map_or(EMPTY_STRING_BYTES, |size| size as i64);
    match input.dims.iter().try_fold(element, |bytes, &dim| bytes.checked_mul(dim)) {
        Some(bytes) => Ok(bytes),
        None => refuse!("warmup setting of input '{name}' has a byte size that exceeds 9223372036854775807"),
    }
}

/// Refuses a file, named `file` in the configuration, that is too short for its input. An input of strings may have any size.
pub fn check_warmup_file(input: &Input, expected: i64, file: &str, found: i64) -> Result<(), ConfigError> {
    if tensor_data_type(input.data_type) != Some(DataType::Bytes) && found < expected {
        refuse!(
            // Triton's text lacks a space here.
            "warmup setting expects {expected} bytes, but the data provided from {file}only has \
             {found} bytes"
        );
    }
    Ok(())
}

/// The error of a load whose warmup sample failed.
pub fn warmup_failed(sample: &str, error: &str) -> ConfigError {
    ConfigError::invalid(format!("failed to run warmup sample '{sample}': {error}; "))
}
