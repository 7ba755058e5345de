//! What does a call give back to HTTP/2?

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use nerite_budget::Charge;
use nerite_wire::proto::Chunks;

use crate::body::Body;
use crate::charging::pay;
use crate::compress::ACCEPTED;
use crate::failure::Failure;
use crate::serve::Call;
use crate::stream::StreamBody;

/// A response, as hyper sends it.
pub(crate) type Answer = Response<Body>;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

fn with(body: Body, encoding: Option<HeaderValue>) -> Answer {
    let mut answer = Response::new(body);
    answer.headers_mut().insert(CONTENT_TYPE, GRPC);
    if let Some(encoding) = encoding {
        answer.headers_mut().insert("grpc-encoding", encoding);
    }
    answer
}

/// One message, and success.
pub(crate) fn message(chunks: Chunks, encoding: Option<HeaderValue>, call: Arc<Call>, charge: Charge) -> Answer {
    with(Body::message(pay(chunks, charge), call), encoding)
}

/// Messages as they come, and whatever end.
pub(crate) fn stream(stream: StreamBody, encoding: Option<HeaderValue>, call: Arc<Call>) -> Answer {
    with(Body::stream(stream, call), encoding)
}

/// No message, and the reason why.
pub(crate) fn failure(failure: &Failure) -> Answer {
    let mut answer = with(Body::nothing(), None);
    failure.write(answer.headers_mut());
    answer.headers_mut().insert("grpc-accept-encoding", ACCEPTED);
    answer
}

/// What HTTP says to something that is not gRPC.
pub(crate) fn not_grpc(status: StatusCode) -> Answer {
    let mut answer = Response::new(Body::nothing());
    *answer.status_mut() = status;
    answer
}
