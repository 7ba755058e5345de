//! How is an answer sent?

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::header::{ACCEPT_ENCODING, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::ext::ReasonPhrase;
use nerite_api::Refused;
use nerite_api::codes::http_status;
use nerite_budget::{Account, paid};
use nerite_request::Status;
use nerite_wire::json::write_error;

use crate::error_text::cut;
use crate::events::Events;
use crate::limits::CHARGED_BYTES_MIN;

/// The Content-Type of most answers.
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The Content-Type of errors before a call has read its body.
pub const PLAIN: HeaderValue = HeaderValue::from_static("text/plain");
/// The Content-Type of answers with binary tensors.
pub const BINARY: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// The bytes of an answer, sent without a copy.
#[derive(Debug)]
pub enum Outgoing {
    /// No bytes.
    Empty,
    /// One piece.
    Whole(Bytes),
    /// Several pieces, none of them empty.
    Pieces(VecDeque<Bytes>),
    /// The pieces, and then events as they are made. The code that writes an event charges it.
    Events {
        /// The pieces that exist already.
        pieces: VecDeque<Bytes>,
        /// The events that follow.
        events: Box<Events>,
    },
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let next = match this {
            Outgoing::Empty => None,
            Outgoing::Whole(bytes) => Some(std::mem::take(bytes)),
            Outgoing::Pieces(pieces) => pieces.pop_front(),
            Outgoing::Events { pieces, events } => match pieces.pop_front() {
                Some(piece) => Some(piece),
                None => ready!(events.poll_event(cx)),
            },
        };
        if this.is_end_stream() || matches!(this, Outgoing::Whole(_)) {
            *this = Outgoing::Empty;
        }
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Outgoing::Empty => true,
            Outgoing::Whole(bytes) => bytes.is_empty(),
            Outgoing::Pieces(pieces) => pieces.is_empty(),
            Outgoing::Events { .. } => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(match self {
            Outgoing::Empty => 0,
            Outgoing::Whole(bytes) => bytes.len() as u64,
            Outgoing::Pieces(pieces) => pieces.iter().map(|piece| piece.remaining() as u64).sum(),
            Outgoing::Events { .. } => return SizeHint::new(),
        })
    }
}

/// The error of a call that has sent no answer yet.
#[derive(Debug)]
pub struct Failure {
    /// The status.
    pub status: Status,
    /// The Content-Type of the answer.
    pub content_type: HeaderValue,
    /// Whether the connection must close, because no further request can be read from it.
    pub close: bool,
    /// Whether to list the supported encodings in a header.
    pub lists_encodings: bool,
    /// Whether the client disconnected before its whole request had arrived.
    pub has_gone: bool,
}

impl Failure {
    /// An error whose Content-Type is plain text, as in Triton if a call has not read its body yet.
    pub fn plain(status: Status) -> Failure {
        Failure { content_type: PLAIN, ..status.into() }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure { status, content_type: JSON, close: false, lists_encodings: false, has_gone: false }
    }
}

impl From<Failure> for Response<Outgoing> {
    fn from(failure: Failure) -> Response<Outgoing> {
        let code = StatusCode::from_u16(http_status(failure.status.code)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = error(code, failure.content_type, &failure.status.message);
        if failure.close {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if failure.lists_encodings {
            response.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip, deflate"));
        }
        response
    }
}

/// 200 with a JSON text.
pub fn json(text: impl Into<Bytes>) -> Response<Outgoing> {
    typed(StatusCode::OK, JSON, Outgoing::Whole(text.into()))
}

/// 200 with an empty body and the Content-Type of JSON.
pub fn done() -> Response<Outgoing> {
    typed(StatusCode::OK, JSON, Outgoing::Empty)
}

/// A status with an empty body.
pub fn bare(code: StatusCode) -> Response<Outgoing> {
    typed(code, PLAIN, Outgoing::Empty)
}

/// A status with an error text. The text is cut at [`ERROR_BYTES_MAX`](crate::limits::ERROR_BYTES_MAX), because it may quote names that a client chose.
pub fn error(code: StatusCode, content_type: HeaderValue, message: &str) -> Response<Outgoing> {
    typed(code, content_type, Outgoing::Whole(write_error(&cut(message)).into()))
}

/// Charges the bytes of an answer to `account` until its last piece is sent. Events are charged when they are written.
pub fn charged(account: &Account, mut response: Response<Outgoing>) -> Response<Outgoing> {
    let last = match response.body_mut() {
        Outgoing::Whole(bytes) => Some((bytes.len(), bytes)),
        Outgoing::Pieces(pieces) => {
            let len = pieces.iter().map(Bytes::len).sum();
            pieces.back_mut().map(|last| (len, last))
        }
        Outgoing::Empty | Outgoing::Events { .. } => None,
    };
    if let Some((len, last)) = last
        && len >= CHARGED_BYTES_MIN
    {
        *last = paid(std::mem::take(last), account.charge(len));
    }
    response
}

/// The answer if the path is unknown.
pub fn not_found() -> Response<Outgoing> {
    error(StatusCode::NOT_FOUND, PLAIN, "Not Found")
}

/// The answer to a client that may not make the call, or may not make it now.
pub fn forbidden(refused: &Refused) -> Response<Outgoing> {
    let code = StatusCode::from_u16(refused.http_status()).unwrap_or(StatusCode::FORBIDDEN);
    let mut response = error(code, PLAIN, &refused.status.message);
    if code == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(seconds) = refused.retry_after_s {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// The answer if the path needs another method. Its reason phrase is Triton's, which is shorter than the standard one.
pub fn method_not_allowed(content_type: HeaderValue) -> Response<Outgoing> {
    let mut response = error(StatusCode::METHOD_NOT_ALLOWED, content_type, "Method Not Allowed");
    response.extensions_mut().insert(ReasonPhrase::from_static(b"Not Allowed"));
    response
}

fn typed(code: StatusCode, content_type: HeaderValue, body: Outgoing) -> Response<Outgoing> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::ERROR_BYTES_MAX;

    #[test]
    fn a_long_answer_is_charged_until_its_last_piece_is_gone() {
        let account = Account::unlimited();
        let before = account.held();
        let pieces = || VecDeque::from([Bytes::from(vec![1; CHARGED_BYTES_MIN]), Bytes::from(vec![2; 5])]);
        let response = charged(&account, Response::new(Outgoing::Pieces(pieces())));
        let Outgoing::Pieces(mut left) = response.into_body() else { panic!("the pieces stay pieces") };
        assert_eq!(left, pieces());
        left.pop_front();
        assert_eq!(account.held() - before, CHARGED_BYTES_MIN as u64 + 5);
        left.pop_front();
        assert_eq!(account.held(), before);
    }

    #[test]
    fn every_error_is_short_and_every_long_text_is_charged() {
        let account = Account::unlimited();
        let before = account.held();
        let refused = error(StatusCode::BAD_REQUEST, JSON, &"\u{1}".repeat(1 << 20));
        assert!(refused.body().size_hint().exact().unwrap_or_default() <= 6 * ERROR_BYTES_MAX as u64 + 64);
        let answer = charged(&account, json(vec![b' '; 1 << 20]));
        assert_eq!(account.held() - before, 1 << 20);
        drop(answer);
        assert_eq!(account.held(), before);
    }
}
