//! How is a call's answer built for HTTP/2?

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use nerite_budget::Charge;
use nerite_wire::proto::Chunks;

use crate::body::Body;
use crate::charging::charge_answer;
use crate::compress::ACCEPTED;
use crate::failure::Failure;
use crate::limits::KEPT_HEADERS_MAX;
use crate::serve::Call;
use crate::stream::StreamBody;

/// A response for hyper.
pub(crate) type Answer = Response<Body>;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// An empty header list for an answer. It reuses the memory of the request's header list if that list is not large.
pub(crate) fn emptied(mut headers: HeaderMap) -> HeaderMap {
    headers.clear();
    if headers.capacity() <= KEPT_HEADERS_MAX { headers } else { HeaderMap::new() }
}

fn with(body: Body, headers: HeaderMap, encoding: Option<HeaderValue>) -> Answer {
    let mut answer = Response::new(body);
    *answer.headers_mut() = headers;
    answer.headers_mut().insert(CONTENT_TYPE, GRPC);
    if let Some(encoding) = encoding {
        answer.headers_mut().insert("grpc-encoding", encoding);
    }
    answer
}

/// An answer with one message, and status OK. `headers` is an empty list, which is filled.
pub(crate) fn message(
    chunks: Chunks,
    headers: HeaderMap,
    encoding: Option<HeaderValue>,
    call: Call,
    charge: Charge,
) -> Answer {
    with(Body::message(charge_answer(chunks, charge), call), headers, encoding)
}

/// An answer with any number of messages, and a status at the end.
pub(crate) fn stream(stream: StreamBody, encoding: Option<HeaderValue>, call: Call) -> Answer {
    with(Body::stream(stream, call), HeaderMap::new(), encoding)
}

/// An answer with only a status.
pub(crate) fn failure(failure: &Failure) -> Answer {
    let mut answer = with(Body::nothing(), HeaderMap::new(), None);
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
