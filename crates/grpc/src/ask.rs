//! What does a message ask for, given its call's metadata and the model's own words?

use http::HeaderMap;
use nerite_api::{Api, Protocol, Status};
use nerite_request::{Ask, Parameter, Parameters};
use nerite_wire::proto::{InferMessage, wrong_datatype};

/// What the message means.
pub(crate) fn to_ask(api: &Api, headers: &HeaderMap, message: InferMessage) -> Result<Ask, Status> {
    if let Some(input) = message.input_of_unknown_datatype() {
        let report = api.model_report(&message.model, &message.version)?;
        if let Some(tensor) = report.inputs.iter().find(|tensor| tensor.name == input) {
            let expected = format!("'{}'", tensor.datatype);
            return Err(wrong_datatype(&message.id, &message.model, input, &expected));
        }
    }
    message.into_ask(|parameters| forward(api, headers, parameters))
}

/// Adds the metadata that the operator wants forwarded. What belongs to gRPC itself, and what is not text, never is.
fn forward(api: &Api, headers: &HeaderMap, parameters: &mut Parameters) -> Result<(), Status> {
    if !api.forwards_headers(Protocol::Grpc) {
        return Ok(());
    }
    for (name, value) in headers {
        let name = name.as_str();
        if is_protocol(name) || !api.forwards_header(Protocol::Grpc, name)? {
            continue;
        }
        if let Ok(text) = std::str::from_utf8(value.as_bytes()) {
            parameters.insert(name, Parameter::String(text.to_owned()));
        }
    }
    Ok(())
}

fn is_protocol(name: &str) -> bool {
    matches!(name, "content-type" | "te") || name.starts_with("grpc-") || name.ends_with("-bin")
}
