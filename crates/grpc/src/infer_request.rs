//! How is a message combined with its call's metadata into a request?

use http::{HeaderMap, HeaderValue};
use nerite_api::{Api, Protocol, Status, TraceContext};
use nerite_request::{InferRequest, Parameter, Parameters, Recycled};
use nerite_wire::proto::{InferMessage, wrong_datatype};

/// The parts of a call's metadata that belong to its requests. Most calls have none, so they are in a box, and the future of a call stays small.
#[derive(Clone)]
pub(crate) struct Forwarded(Option<Box<Selected>>);

#[derive(Clone)]
struct Selected {
    /// The parameters that the metadata becomes, or the error if it is not allowed.
    parameters: Result<Vec<(String, String)>, Status>,
    /// The client's span that the requests belong to.
    parent: Option<TraceContext>,
}

/// Makes a request from a message and its call's metadata. If an input has an unknown datatype, the error names the expected one.
pub(crate) fn to_infer_request(
    api: &Api,
    forwarded: &Forwarded,
    mut message: Recycled<InferMessage>,
) -> Result<Recycled<InferRequest>, Status> {
    if let Some(input) = message.input_of_unknown_datatype() {
        let report = api.model_report(&message.model, &message.version)?;
        if let Some(tensor) = report.inputs.iter().find(|tensor| tensor.name == input) {
            let expected = format!("'{}'", tensor.datatype);
            return Err(wrong_datatype(&message.id, &message.model, input, &expected));
        }
    }
    message.take_infer_request(|parameters| forwarded.add_to(parameters))
}

impl Forwarded {
    /// Reads the metadata that the operator selected.
    pub(crate) fn of(api: &Api, headers: &HeaderMap) -> Forwarded {
        let selected = Selected {
            parent: api.trace_parent(|name| headers.get(name).map(HeaderValue::as_bytes)),
            parameters: forward(api, headers),
        };
        let is_nothing = selected.parent.is_none() && selected.parameters.as_ref().is_ok_and(Vec::is_empty);
        Forwarded((!is_nothing).then(|| Box::new(selected)))
    }

    /// Bytes of all names and values.
    pub(crate) fn len(&self) -> usize {
        let Some(selected) = &self.0 else { return 0 };
        selected.parameters.iter().flatten().map(|(name, text)| name.len() + text.len()).sum()
    }

    /// The client's span that the requests of the call belong to.
    pub(crate) fn parent(&self) -> Option<TraceContext> {
        self.0.as_ref()?.parent.clone()
    }

    fn add_to(&self, parameters: &mut Parameters) -> Result<(), Status> {
        let Some(selected) = &self.0 else { return Ok(()) };
        for (name, text) in selected.parameters.as_ref().map_err(Status::clone)? {
            parameters.insert(name, Parameter::String(text.clone()));
        }
        Ok(())
    }
}

/// The metadata that the operator selected. gRPC's own entries, and binary ones, are never forwarded.
fn forward(api: &Api, headers: &HeaderMap) -> Result<Vec<(String, String)>, Status> {
    let mut kept = Vec::new();
    if !api.forwards_headers(Protocol::Grpc) {
        return Ok(kept);
    }
    for (name, value) in headers {
        let name = name.as_str();
        if is_protocol(name) || !api.forwards_header(Protocol::Grpc, name)? {
            continue;
        }
        if let Ok(text) = std::str::from_utf8(value.as_bytes()) {
            kept.push((name.to_owned(), text.to_owned()));
        }
    }
    Ok(kept)
}

fn is_protocol(name: &str) -> bool {
    matches!(name, "content-type" | "te") || name.starts_with("grpc-") || name.ends_with("-bin")
}
