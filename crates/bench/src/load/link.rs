//! How does a worker reach the server?

use std::io;
use std::sync::Arc;
use std::time::Instant;

use nerite_client::Request;

use crate::dataset::Sequenced;
use crate::options::Protocol;
use crate::plan::Plan;
use crate::wire::{Connection, Encoder, Endpoint, Grpc, Headers, Http, SessionKind, SessionLink, Stream, Times};

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const STREAM_INFER: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// Makes the connections of workers.
#[derive(Clone)]
pub(crate) enum Linker {
    Wire(Arc<Wire>),
    Session { address: String, plan: Arc<Plan>, kind: SessionKind, steps: usize },
}

/// What connections of HTTP and gRPC share.
pub(crate) struct Wire {
    pub(crate) endpoint: Endpoint,
    pub(crate) protocol: Protocol,
    pub(crate) is_streaming: bool,
    /// Further headers of gRPC.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) encoder: Encoder,
    pub(crate) requests: Vec<Request>,
    /// The bytes of each request.
    pub(crate) messages: Vec<Vec<u8>>,
}

/// One worker's connection.
pub(super) enum Link {
    Wire { wire: Arc<Wire>, connection: Box<dyn Connection> },
    Session(Box<SessionLink>),
}

impl Linker {
    /// The number of requests to choose from.
    pub(super) fn steps(&self) -> usize {
        match self {
            Linker::Wire(wire) => wire.messages.len(),
            Linker::Session { steps, .. } => *steps,
        }
    }

    pub(super) fn connect(&self) -> Result<Link, String> {
        match self {
            Linker::Session { address, plan, kind, .. } => {
                let link = SessionLink::connect(address, plan, kind).map_err(|error| error.to_string())?;
                Ok(Link::Session(Box::new(link)))
            }
            Linker::Wire(wire) => {
                let authority = wire.endpoint.authority();
                let headers = |path| Headers::new(path, authority, wire.endpoint.is_tls(), &wire.headers);
                let connection: io::Result<Box<dyn Connection>> = match (wire.protocol, wire.is_streaming) {
                    (Protocol::Grpc, false) => {
                        Grpc::connect(&wire.endpoint, headers(INFER)).map(|one| Box::new(one) as _)
                    }
                    (Protocol::Grpc, true) => {
                        Stream::connect(&wire.endpoint, headers(STREAM_INFER)).map(|one| Box::new(one) as _)
                    }
                    _ => Http::connect(&wire.endpoint).map(|one| Box::new(one) as _),
                };
                let connection = connection.map_err(|error| format!("cannot connect to {authority}: {error}"))?;
                Ok(Link::Wire { wire: Arc::clone(wire), connection })
            }
        }
    }
}

impl Link {
    /// Sends the request of the step `at`, and reads its responses to the end.
    pub(super) fn exchange(&mut self, at: usize, sequenced: Option<Sequenced>) -> io::Result<Times> {
        match self {
            Link::Session(session) => session.exchange(at, sequenced),
            Link::Wire { wire, connection } => match sequenced {
                None => connection.exchange(&wire.messages[at]),
                Some(sequenced) => {
                    let message = wire.encoder.encode(&sequenced.part_of(&wire.requests[at]));
                    connection.exchange(&message.map_err(io::Error::other)?)
                }
            },
        }
    }

    /// When the responses of the last request came, if there may be several.
    pub(super) fn responses(&self) -> &[Instant] {
        match self {
            Link::Session(_) => &[],
            Link::Wire { connection, .. } => connection.responses(),
        }
    }
}
