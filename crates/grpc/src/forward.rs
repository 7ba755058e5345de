//! Which of a call's metadata become parameters of its request?

use http::HeaderMap;
use nerite_api::{Api, Protocol, Status};
use nerite_request::{Parameter, Parameters};

/// Adds the metadata that the operator wants forwarded. What belongs to gRPC itself, and what is not text, never is.
pub(crate) fn forward(api: &Api, headers: &HeaderMap, parameters: &mut Parameters) -> Result<(), Status> {
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
