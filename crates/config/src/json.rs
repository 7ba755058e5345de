//! What does a configuration look like in JSON?

mod read;
mod write;

use crate::{ConfigError, ModelConfig, schema};

/// The JSON that the config endpoint answers: the names of the schema in its order,
/// enumerations by name, every scalar, list and map even if it is empty, messages
/// only if they are set, and 64-bit numbers as numbers.
pub fn to_json(config: &ModelConfig) -> String {
    let mut json = String::with_capacity(2048);
    write::message(&mut json, &schema::to_dynamic(config));
    json
}

/// Reads the `config` parameter of a load request. It takes what protobuf's JSON
/// reader takes: also lowerCamelCase names, numbers and booleans in strings,
/// enumerations in any case or by number, one value for a list, and null for what
/// is unset. Of its laxer syntax (`'` for `"`, bare names, final commas) it takes none.
pub fn from_json(json: &str) -> Result<ModelConfig, ConfigError> {
    let value = serde_json::from_str(json).map_err(|cause| ConfigError::Override { reason: cause.to_string() })?;
    read::message(&value, &schema::model_config(), "")
        .map(|config| schema::to_typed(&config))
        .map_err(|reason| ConfigError::Override { reason })
}

#[cfg(test)]
mod tests;
