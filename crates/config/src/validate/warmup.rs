//! Can the warmup requests be made?

use nerite_tensor::DataType;

use crate::error::refuse;
use crate::proto::model_warmup::Input;
use crate::{ConfigError, ModelConfig, tensor_data_type};

/// The folder, in the model's directory, of the files that warmup inputs name.
pub const WARMUP_FOLDER: &str = "warmup";

/// Strings of synthetic inputs are empty: four bytes of length each.
const EMPTY_STRING_BYTES: i64 = 4;

/// Checks the warmup samples, files apart. A sample with batch size 0 is skipped.
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

/// The bytes of one item of a warmup input.
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

/// Refuses a file, called `file` in the configuration, that is too short for its
/// input. Strings take what the file has.
pub fn check_warmup_file(input: &Input, expected: i64, file: &str, found: i64) -> Result<(), ConfigError> {
    if tensor_data_type(input.data_type) != Some(DataType::Bytes) && found < expected {
        refuse!(
            // Triton's missing space.
            "warmup setting expects {expected} bytes, but the data provided from {file}only has \
             {found} bytes"
        );
    }
    Ok(())
}

/// The failure of a load whose warmup sample was answered with an error.
pub fn warmup_failed(sample: &str, error: &str) -> ConfigError {
    ConfigError::invalid(format!("failed to run warmup sample '{sample}': {error}; "))
}
