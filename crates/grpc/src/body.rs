//! What does a call's answer look like to HTTP/2?

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use nerite_wire::proto::Chunks;

use crate::failure::ok_trailers;
use crate::serve::CallGuard;
use crate::stream::StreamBody;

/// The body of a response. It counts as a call in progress until it has been sent.
pub(crate) struct Body {
    kind: Kind,
    _guard: Option<CallGuard>,
}

enum Kind {
    /// Nothing: the status is in the headers.
    Nothing,
    /// One message and the status.
    Message(smallvec::IntoIter<[Bytes; 2]>),
    /// Any number of messages.
    Stream(Box<StreamBody>),
}

impl Body {
    pub(crate) fn nothing() -> Body {
        Body { kind: Kind::Nothing, _guard: None }
    }

    pub(crate) fn message(chunks: Chunks, guard: CallGuard) -> Body {
        Body { kind: Kind::Message(chunks.into_iter()), _guard: Some(guard) }
    }

    pub(crate) fn stream(stream: StreamBody, guard: CallGuard) -> Body {
        Body { kind: Kind::Stream(Box::new(stream)), _guard: Some(guard) }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let frame = match &mut this.kind {
            Kind::Nothing => None,
            Kind::Message(chunks) => Some(chunks.next().map_or_else(
                || {
                    this.kind = Kind::Nothing;
                    Frame::trailers(ok_trailers())
                },
                Frame::data,
            )),
            Kind::Stream(stream) => match stream.poll_part(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(part) => Some(part.unwrap_or_else(|trailers: HeaderMap| {
                    this.kind = Kind::Nothing;
                    Frame::trailers(trailers)
                })),
            },
        };
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.kind, Kind::Nothing)
    }
}
