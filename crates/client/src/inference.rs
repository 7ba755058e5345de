//! How is an inference made over a session?

use bytes::Bytes;
use nerite_memory::Extent;
use nerite_wire::proto::messages::ModelInferResponse;
use nerite_wire::proto::session::v1;
use prost::Message as _;
use v1::client_message::Call;
use v1::server_message::Answer as Reply;

use crate::session::{Answer, OutputLease, Waiter, refusal};
use crate::{Error, Request, Response, Session, message};

/// A request that is encoded once, to be sent many times.
#[derive(Clone, Debug)]
pub struct PreparedRequest(pub(crate) v1::Infer);

impl Session {
    /// Runs one inference over the session.
    pub async fn infer(&self, request: &Request) -> Result<Response, Error> {
        self.infer_leased(request, &[]).await
    }

    /// Runs one inference of a model that may send any number of responses. Each response has its own leases for outputs of [`Request::output_leased`].
    pub async fn infer_stream(&self, request: &Request) -> Result<SessionStream, Error> {
        let call = Call::Infer(PreparedRequest::new(request, &[]).0);
        Ok(SessionStream(self.send(call).await?))
    }

    /// Runs one inference whose named outputs the server writes to leases of its choice. The leases are returned when the response, and everything that was
    /// made from its outputs, is dropped.
    pub async fn infer_leased(&self, request: &Request, outputs: &[&str]) -> Result<Response, Error> {
        self.infer_prepared(&PreparedRequest::new(request, outputs)).await
    }

    /// Runs one inference of a request that is sent often.
    pub async fn infer_prepared(&self, request: &PreparedRequest) -> Result<Response, Error> {
        match self.call(Call::Infer(request.0.clone())).await? {
            Answer::Inference { response, placed } => read_response(response, placed),
            other => Err(other.unexpected()),
        }
    }
}

impl PreparedRequest {
    /// Encodes `request`. These outputs, and those of [`Request::output_leased`], are placed in leases of the server's choice.
    pub fn new(request: &Request, leased_outputs: &[&str]) -> PreparedRequest {
        let trace = request.trace().map(|trace| Box::new(trace.message()));
        let names = request.outputs.iter().filter(|wanted| wanted.leased).map(|wanted| &*wanted.name);
        let leased_outputs = names.chain(leased_outputs.iter().copied()).map(str::to_owned).collect();
        let request = message::request(request, None).encode_to_vec().into();
        PreparedRequest(v1::Infer { request, leased_outputs, trace })
    }
}

/// The responses to one inference, in order. Dropping this before the last response cancels the inference.
///
/// ```no_run
/// # async fn call(session: nerite_client::Session, request: nerite_client::Request) -> Result<(), nerite_client::Error> {
/// let mut responses = session.infer_stream(&request).await?;
/// while let Some(response) = responses.next().await? {
///     println!("{} outputs", response.outputs.len());
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct SessionStream(Waiter);

impl SessionStream {
    /// The next response. `None` after the last one. An error may concern only one response, and others may follow.
    pub async fn next(&mut self) -> Result<Option<Response>, Error> {
        match self.0.next_answer().await? {
            None => Ok(None),
            // An empty answer says only that no response follows.
            Some(Answer::Inference { response, placed }) if response.is_empty() && placed.is_empty() => Ok(None),
            Some(Answer::Inference { response, placed }) => read_response(response, placed).map(Some),
            Some(Answer::Reply(Reply::Error(error))) => Err(refusal(error)),
            Some(other) => Err(other.unexpected()),
        }
    }
}

pub(crate) fn read_response(bytes: Bytes, placed: Vec<OutputLease>) -> Result<Response, Error> {
    let decoded = ModelInferResponse::decode(bytes).map_err(|error| Error::Answer(error.to_string()))?;
    let mut response = message::response(decoded)?;
    for OutputLease { output, lease, offset, byte_size } in placed {
        let output = response.outputs.iter_mut().find(|one| one.name == output);
        let output = output.ok_or_else(|| Error::Answer("a lease for an output that is not there".to_owned()))?;
        let extent = Extent::new(offset, byte_size, lease.byte_size());
        let extent =
            extent.map_err(|error| Error::Answer(format!("output '{}' in a lease that {error}", output.name)))?;
        output.data = Some(lease.buffer_of(extent));
    }
    Ok(response)
}
