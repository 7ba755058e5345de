//! Which call does a request make, and is the call allowed?

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use hyper::body::Incoming;
use nerite_api::{Api, Protocol, Status, TraceClock};
use nerite_budget::limits::STREAM_BYTES;
use nerite_compress::Lane;
use nerite_wire::proto::{Chunks, MESSAGE_BYTES_MAX};

use crate::answer::{self, Answer};
use crate::begun::Begun;
use crate::call::Call;
use crate::compress::{Compression, request_encoding};
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::frame::{Message, Messages};
use crate::infer_request::Forwarded;
use crate::limits::{CONTROL_MESSAGE_BYTES_MAX, LOAD_PART_BYTES};
use crate::message_format::MessageFormat;
use crate::serve::{self, CallPhase, ServerState};
use crate::stream::StreamBody;
use crate::{infer, unary};

/// gRPC's number of a call that succeeded.
const OK: u32 = 0;

/// Answers one HTTP/2 request. Its messages are compressed and inflated in the `lane` of its connection.
pub(crate) async fn dispatch(
    server: Arc<ServerState>,
    lane: Lane,
    this: serve::Call,
    request: Request<Incoming>,
) -> Result<Answer, Infallible> {
    if request.method() != Method::POST {
        return Ok(answer::not_grpc(StatusCode::METHOD_NOT_ALLOWED));
    }
    if !is_grpc(request.headers()) {
        return Ok(answer::not_grpc(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    Ok(call(server, lane, this, request).await.unwrap_or_else(|failure| answer::failure(&failure)))
}

async fn call(
    server: Arc<ServerState>,
    lane: Lane,
    this: serve::Call,
    request: Request<Incoming>,
) -> Result<Answer, Failure> {
    let (head, body) = request.into_parts();
    let call = Call::from_path(head.uri.path()).ok_or(Failure::UNKNOWN_CALL)?;
    let header = |name: &str| head.headers.get(name).map(HeaderValue::as_bytes);
    let named = || format!("{call:?}");
    let server =
        match server.api.allow(Protocol::Grpc, call.category(), call.changes(), named, header).map_err(Status::from)? {
            Some(api) => server.by_token(api),
            None => server,
        };
    let begun = begin(&server, lane, &this, call, &head, body).map_err(|failure| noted(&server, failure))?;
    // `begun` has all that is needed of the head. A head can be many times as large as the bytes it was decoded from, so only the memory of a
    // short header list is kept, for the answer.
    let Parts { headers, .. } = head;
    let headers = answer::emptied(headers);
    let encoding = begun.compression.as_ref().map(Compression::header);
    if call == Call::ModelStreamInfer {
        return Ok(answer::stream(StreamBody::new(server, this.clone(), begun), encoding, this));
    }
    let Begun { deadline, messages, forwarded, compression, charge, .. } = begun;
    let chunks = {
        let answered = pin!(unary(&server, &this, call, forwarded, messages, compression));
        deadline.bound(answered).await.map_err(|failure| noted(&server, failure))?
    };
    server.api.note_status(OK);
    Ok(answer::message(chunks, headers, encoding, this, charge))
}

/// Notes the code of a failure for the log line of the call, and returns the failure.
fn noted(server: &ServerState, failure: Failure) -> Failure {
    server.api.note_status(failure.code());
    failure
}

fn begin(
    server: &ServerState,
    lane: Lane,
    this: &serve::Call,
    call: Call,
    head: &Parts,
    body: Incoming,
) -> Result<Begun, Failure> {
    let is_infer = matches!(call, Call::ModelInfer | Call::ModelStreamInfer);
    if is_infer {
        server.api.check_accepting().map_err(|_| Failure::STOPPING)?;
    }
    let bytes_max = message_bytes_max(&server.api, call)?;
    let inflated_bytes_max = server.api.inflated_bytes_max().min(bytes_max as u64);
    let part_bytes = (call == Call::RepositoryModelLoad).then_some(LOAD_PART_BYTES);
    let format =
        MessageFormat { encoding: request_encoding(&head.headers)?, bytes_max, inflated_bytes_max, part_bytes };
    let level = server.options.response_compression;
    let compression = Compression::of_response(&head.headers, level, &lane).filter(|_| is_infer);
    let messages = Messages::new(body, format, lane, this.clone(), server);
    let messages = if is_infer { messages.booked_at(&server.api) } else { messages };
    let deadline = Deadline::from_headers(&head.headers);
    let forwarded = Forwarded::of(&server.api, &head.headers);
    let is_strict = head.headers.get("triton_grpc_error").is_some_and(|value| value == "true");
    let charge = server.api.account().charge(STREAM_BYTES as usize + forwarded.len());
    Ok(Begun { messages, deadline, compression, forwarded, is_strict, charge })
}

/// The most bytes that a message of this call may have. A load that will be refused is refused here, before its files arrive.
fn message_bytes_max(api: &Api, call: Call) -> Result<usize, Status> {
    Ok(match call {
        Call::ModelInfer | Call::ModelStreamInfer => MESSAGE_BYTES_MAX,
        Call::RepositoryModelLoad => {
            MESSAGE_BYTES_MAX.min(usize::try_from(api.load_bytes_max()?).unwrap_or(usize::MAX))
        }
        _ => CONTROL_MESSAGE_BYTES_MAX,
    })
}

async fn unary(
    server: &Arc<ServerState>,
    this: &serve::Call,
    call: Call,
    forwarded: Forwarded,
    mut messages: Messages,
    compression: Option<Compression>,
) -> Result<Chunks, Failure> {
    let is_infer = call == Call::ModelInfer;
    let clock = if is_infer { server.api.trace_clock() } else { TraceClock::OFF };
    // Once the whole message has arrived, the server does not wait for the client, and a stop of the server waits for the answer.
    let on_complete = || {
        this.set_phase(CallPhase::Compute);
        is_infer.then(|| server.api.accept_inference()).transpose().map_err(|_| Failure::STOPPING)
    };
    let received = messages.only(on_complete).await;
    drop(messages);
    let (taken_on, message) = received?;
    if let Some(under_way) = taken_on {
        return infer::model_infer(server, under_way, forwarded, message, compression, clock).await;
    }
    // The futures of rare calls are large. They are boxed, so that they do not enlarge the future of every inference.
    let Message { chain, charge: _until_it_is_answered } = message;
    Box::pin(unary::answer(&server.api, call, chain)).await
}

/// `application/grpc`, optionally followed by `+proto` or a parameter.
fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    let rest = content_type.strip_prefix(b"application/grpc");
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(content_type: &'static str, accepted: bool) {
        let headers = [(CONTENT_TYPE, HeaderValue::from_static(content_type))].into_iter().collect();
        assert_eq!(is_grpc(&headers), accepted, "{content_type}");
    }

    /// Size of the future that `call` returns.
    fn size_of_future<A, B, C, D, F>(_call: impl Fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn the_future_of_a_call_is_small() {
        // It is copied to the heap once for each call. Box parts that are rarely needed.
        let bytes = size_of_future(dispatch);
        assert!(bytes <= 4352, "{bytes}");
    }

    #[test]
    fn only_grpc_content_is_accepted() {
        check("application/grpc", true);
        check("application/grpc+proto", true);
        check("application/grpc; charset=utf-8", true);
        check("application/grpc-web", false);
        check("application/json", false);
        assert!(!is_grpc(&HeaderMap::new()));
    }
}
