//! How is a call's answer built for HTTP/2?

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use nerite_budget::Charge;
use nerite_wire::proto::Chunks;

use crate::body::Body;
use crate::charging::charge_answer;
use crate::compress::ACCEPTED;
use crate::failure::Failure;
use crate::serve::Call;
use crate::stream::StreamBody;

/// A response for hyper.
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

/// An answer with one message, and status OK.
pub(crate) fn message(chunks: Chunks, encoding: Option<HeaderValue>, call: Arc<Call>, charge: Charge) -> Answer {
    with(Body::message(charge_answer(chunks, charge), call), encoding)
}

/// An answer with any number of messages, and a status at the end.
pub(crate) fn stream(stream: StreamBody, encoding: Option<HeaderValue>, call: Arc<Call>) -> Answer {
    with(Body::stream(stream, call), encoding)
}

/// An answer with only a status.
pub(crate) fn failure(failure: &Failure) -> Answer {
    let mut answer = with(Body::nothing(), None);
    failure.write(answer.headers_mut());
    answer.headers_mut().insert("grpc-accept-encoding", ACCEPTED);
    answer
}

/// The HTTP answer to a request that is not gRPC.
pub(crate) fn not_grpc(status: StatusCode) -> Answer {
    let mut answer = Response::new(Body::nothing());
    *answer.status_mut() = status;
    answer
}
