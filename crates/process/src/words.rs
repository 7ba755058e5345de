//! How are failures and parameters encoded in packets?

use nerite_request::{Code, Parameter, Parameters, Status};
use serde_json::Value;

/// Parses a failure: `[code, text]`, or only the text.
pub(crate) fn status_of(error: &Value) -> Status {
    let (code, text) = match error.as_array().map(Vec::as_slice) {
        Some([code, text]) => (code.as_str().unwrap_or_default(), text.as_str().unwrap_or_default()),
        _ => ("INTERNAL", error.as_str().unwrap_or_default()),
    };
    let code = match code {
        "UNKNOWN" => Code::Unknown,
        "NOT_FOUND" => Code::NotFound,
        "INVALID_ARG" => Code::InvalidArg,
        "UNAVAILABLE" => Code::Unavailable,
        "UNSUPPORTED" => Code::Unsupported,
        "ALREADY_EXISTS" => Code::AlreadyExists,
        "CANCELLED" => Code::Cancelled,
        _ => Code::Internal,
    };
    Status::new(code, text)
}

/// The name of a code, which [`status_of`] parses.
pub(crate) fn code_word(code: Code) -> &'static str {
    match code {
        Code::Unknown => "UNKNOWN",
        Code::Internal => "INTERNAL",
        Code::NotFound => "NOT_FOUND",
        Code::InvalidArg => "INVALID_ARG",
        // Python models know only Triton's codes, and Triton has none for a refused or limited client.
        Code::Unavailable | Code::Unauthenticated | Code::Denied | Code::Exhausted => "UNAVAILABLE",
        Code::Unsupported => "UNSUPPORTED",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::Cancelled => "CANCELLED",
    }
}

/// Parameters, from JSON.
pub(crate) fn parameters_of(said: &serde_json::Map<String, Value>) -> Parameters {
    let mut parameters = Parameters::new();
    for (key, value) in said {
        let value = match value {
            Value::Bool(value) => Parameter::Bool(*value),
            Value::Number(number) => match number.as_i64() {
                Some(value) => Parameter::Int(value),
                None => Parameter::Double(number.as_f64().unwrap_or_default()),
            },
            Value::String(text) => Parameter::String(text.clone()),
            Value::Null | Value::Array(_) | Value::Object(_) => continue,
        };
        parameters.insert(key.as_str(), value);
    }
    parameters
}

/// Parameters, as JSON.
pub(crate) fn parameters_text(parameters: &Parameters) -> Value {
    let value = |parameter: &Parameter| match parameter {
        Parameter::Bool(value) => Value::from(*value),
        Parameter::Int(value) => Value::from(*value),
        Parameter::String(value) => Value::from(value.as_str()),
        Parameter::Double(value) => Value::from(*value),
    };
    Value::Object(parameters.iter().map(|(key, one)| (key.to_owned(), value(one))).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn failures_and_parameters_are_decoded_as_they_were_encoded() {
        for code in [
            Code::Unknown,
            Code::Internal,
            Code::NotFound,
            Code::InvalidArg,
            Code::Unavailable,
            Code::Unsupported,
            Code::AlreadyExists,
            Code::Cancelled,
        ] {
            assert_eq!(status_of(&json!([code_word(code), "text"])), Status::new(code, "text"));
        }
        assert_eq!(status_of(&json!("plain")), Status::internal("plain"));
        let mut parameters = Parameters::new();
        parameters.insert("bool", Parameter::Bool(true));
        parameters.insert("double", Parameter::Double(0.5));
        parameters.insert("int", Parameter::Int(-7));
        parameters.insert("string", Parameter::String("\"s\"".into()));
        let text = parameters_text(&parameters);
        assert_eq!(parameters_of(text.as_object().unwrap()), parameters);
    }
}
