//! How do many requests and responses share one gRPC stream?

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use nerite_request::{Code, Parameter, Status};
use nerite_wire::proto::messages::{ModelInferRequest, ModelStreamInferResponse};
use tokio::sync::mpsc;
use tonic::Streaming;

use super::call::Caller;
use crate::placing::Placing;
use crate::{Error, Request, Response, message};

/// Requests that wait for the connection; beyond them `send` waits too.
const WAITING_MAX: usize = 16;

/// A stream of requests to any models, and of their responses. Models that answer once answer in the order of the requests. Responses of other models
/// come in between. Give requests ids to distinguish the responses.
#[derive(Debug)]
pub struct InferStream {
    requests: Option<mpsc::Sender<ModelInferRequest>>,
    answers: Answers,
    caller: Caller,
    /// Outputs that the server places, of all requests.
    placing: Option<Placing>,
}

/// One message of the stream.
#[derive(Debug)]
pub struct StreamReply {
    /// The id of the request it answers.
    pub id: String,
    /// Whether it is the last answer to that request.
    pub last: bool,
    /// The answer, or the server's refusal of this one request. The stream continues after it.
    pub outcome: Result<Response, Error>,
}

/// The half that receives. Some servers send their headers only with the first response, so opening must not wait for them.
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
            placing: None,
        }
    }

    /// Sends one request; does not wait for its answer.
    pub async fn send(&mut self, request: &Request) -> Result<(), Error> {
        let ended = || Error::Answer("the stream has ended".to_owned());
        let requests = self.requests.as_ref().ok_or_else(ended)?;
        if let Some(session) = &request.session {
            let placing = self.placing.get_or_insert_with(|| Placing::new(session));
            if !placing.is_with(session) {
                return Err(Error::Session(
                    "all outputs of a stream that are to be leased need the same one".to_owned(),
                ));
            }
        }
        let placing = self.placing.as_ref().filter(|_| request.session.is_some());
        requests.send(message::request(request, placing.map(Placing::key))).await.map_err(|_| ended())
    }

    /// Says that no further request comes. Answers still do.
    pub fn finish(&mut self) {
        self.requests = None;
    }

    /// The next answer; `None` when the server has sent the last one.
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
            let settled = match &self.placing {
                Some(placing) => placing.settle(response).await,
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
    // The stream carries the text of a refusal without its kind. Nothing follows a refusal unless it says so.
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
