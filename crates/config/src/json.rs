//! How is a configuration written and read as JSON?

mod lax;
mod read;
mod write;

use crate::{ConfigError, ModelConfig, schema};

/// The JSON of the config endpoint: the fields in the schema's order, enumerations by name, and 64-bit numbers as numbers. Scalars, lists and maps
/// are written even if empty. Messages are written only if set.
pub fn to_json(config: &ModelConfig) -> String {
    let mut json = String::with_capacity(2048);
    write::message(&mut json, &schema::to_dynamic(config));
    json
}

/// Reads the `config` parameter of a load request. It accepts what protobuf's JSON reader accepts: also lowerCamelCase names, numbers and booleans in
/// strings, enumerations in any case or by number, one value for a list, null for an unset field, and that reader's lax syntax.
pub fn from_json(json: &str) -> Result<ModelConfig, ConfigError> {
    let value = serde_json::from_str(json).or_else(|cause| {
        // The error is about the text that was sent.
        serde_json::from_str(&lax::standard(json)).map_err(|_| ConfigError::Override { reason: cause.to_string() })
    })?;
    read::message(&value, &schema::model_config(), "")
        .map(|config| schema::to_typed(&config))
        .map_err(|reason| ConfigError::Override { reason })
}

#[cfg(test)]
mod tests;
