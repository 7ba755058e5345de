//! How do many requests and responses share one gRPC stream?

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use nerite_request::{Code, Parameter, Status};
use nerite_wire::proto::messages::{ModelInferRequest, ModelStreamInferResponse};
use tokio::sync::mpsc;
use tonic::Streaming;

use super::call::Caller;
use crate::pending_placement::PendingPlacement;
use crate::{Error, Request, Response, message};

/// The most requests that wait for the connection. If there are more, `send` waits.
const WAITING_MAX: usize = 16;

/// A stream of requests to any models, and of their responses. Responses of models that answer once arrive in the order of the requests. Responses of decoupled
/// models may arrive between them. Give requests ids to distinguish the responses.
#[derive(Debug)]
pub struct InferStream {
    requests: Option<mpsc::Sender<ModelInferRequest>>,
    answers: Answers,
    caller: Caller,
    /// The outputs of all requests that the server places in leases.
    placement: Option<PendingPlacement>,
}

/// One message of the stream.
#[derive(Debug)]
pub struct StreamReply {
    /// The id of the request that it answers.
    pub id: String,
    /// Whether it is the last answer to that request.
    pub last: bool,
    /// The answer, or the server's refusal of this one request. The stream continues after it.
    pub outcome: Result<Response, Error>,
}

/// The receiving half of the stream. Some servers send their headers only with the first response, so opening a stream must not wait for the headers.
#[derive(Debug)]
enum Answers {
    Opening(tokio::task::JoinHandle<Result<Streaming<ModelStreamInferResponse>, Error>>),
    Open(Box<Streaming<ModelStreamInferResponse>>),
    Ended,
}

impl InferStream {
    pub(super) fn open(caller: &Caller) -> InferStream {
        let (requests, waiting) = mpsc::channel(WAITING_MAX);
        let opener = caller.clone();
        let opening = tokio::spawn(async move { opener.streaming("ModelStreamInfer", RequestStream(waiting)).await });
        InferStream {
            requests: Some(requests),
            answers: Answers::Opening(opening),
            caller: caller.clone(),
            placement: None,
        }
    }

    /// Sends one request, without waiting for its answer.
    pub async fn send(&mut self, request: &Request) -> Result<(), Error> {
        let ended = || Error::Answer("the stream has ended".to_owned());
        let requests = self.requests.as_ref().ok_or_else(ended)?;
        if let Some(session) = &request.session {
            let placement = self.placement.get_or_insert_with(|| PendingPlacement::new(session));
            if !placement.is_with(session) {
                return Err(Error::Session(
                    "all leased outputs of a stream must be in leases of the same session".to_owned(),
                ));
            }
        }
        let placement = self.placement.as_ref().filter(|_| request.session.is_some());
        requests.send(message::request(request, placement.map(PendingPlacement::key))).await.map_err(|_| ended())
    }

    /// Declares that no more requests follow. Answers still arrive.
    pub fn finish(&mut self) {
        self.requests = None;
    }

    /// The next answer. `None` after the server has sent the last one.
    pub async fn next(&mut self) -> Result<Option<StreamReply>, Error> {
        if let Answers::Opening(opening) = &mut self.answers {
            let opened = opening.await.map_err(|fault| Error::Answer(format!("the stream did not open: {fault}")));
            self.answers = Answers::Ended;
            self.answers = Answers::Open(Box::new(opened??));
        }
        let Answers::Open(answers) = &mut self.answers else { return Ok(None) };
        let next = answers.message().await.map_err(|status| self.caller.failed(&status))?;
        if next.is_none() {
            self.answers = Answers::Ended;
        }
        let Some(mut reply) = next.map(reply).transpose()? else { return Ok(None) };
        if let Ok(response) = &mut reply.outcome {
            let settled = match &self.placement {
                Some(placement) => placement.settle(response).await,
                None => Ok(()),
            };
            if let Err(error) = settled {
                reply.outcome = Err(error);
            }
        }
        Ok(Some(reply))
    }
}

fn reply(message: ModelStreamInferResponse) -> Result<StreamReply, Error> {
    let response = message::response(message.infer_response.unwrap_or_default())?;
    let id = response.id.clone();
    let marked = response.parameters.get("triton_final_response");
    if message.error_message.is_empty() {
        return Ok(StreamReply { id, last: marked == Some(&Parameter::Bool(true)), outcome: Ok(response) });
    }
    // In a stream, a refusal has a text but no code. It is the last answer to its request, unless its parameters say otherwise.
    let refused = Error::Refused(Status::new(Code::Unknown, message.error_message));
    Ok(StreamReply { id, last: marked != Some(&Parameter::Bool(false)), outcome: Err(refused) })
}

struct RequestStream(mpsc::Receiver<ModelInferRequest>);

impl Stream for RequestStream {
    type Item = ModelInferRequest;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ModelInferRequest>> {
        self.0.poll_recv(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nerite_wire::proto::messages::ModelInferResponse;

    #[test]
    fn a_refusal_in_the_stream_names_its_request() {
        let response = ModelInferResponse { id: "7".into(), ..Default::default() };
        let message = ModelStreamInferResponse { error_message: "no".into(), infer_response: Some(response) };
        let reply = reply(message).expect("a message");
        assert_eq!((reply.id.as_str(), reply.last), ("7", true));
        assert_eq!(reply.outcome.expect_err("refused").to_string(), "no");
    }
}
