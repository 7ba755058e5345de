//! How is a call's answer sent over HTTP/2?

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http_body::Frame;
use nerite_listen::Awaited;
use nerite_wire::proto::Chunks;

use crate::failure::ok_trailers;
use crate::serve::{Call, CallPhase};
use crate::stream::StreamBody;

/// The body of a response. Its call is in progress until the body has been sent.
pub(crate) struct Body {
    kind: Kind,
    call: Option<Call>,
}

/// Bytes of an answer. They keep their call in progress until they are sent.
#[derive(Debug)]
pub(crate) struct Piece {
    bytes: Bytes,
    call: Option<Call>,
}

enum Kind {
    /// No more frames. An answer without messages has its status in the headers.
    Nothing,
    /// One message, then the status.
    Message(smallvec::IntoIter<[Bytes; 2]>),
    /// Any number of messages, then the status.
    Stream(Box<StreamBody>),
}

impl Body {
    pub(crate) fn nothing() -> Body {
        Body { kind: Kind::Nothing, call: None }
    }

    pub(crate) fn message(chunks: Chunks, call: Call) -> Body {
        call.set_phase(CallPhase::Answer);
        call.progress.wait_for(Awaited::Write);
        Body { kind: Kind::Message(chunks.into_iter()), call: Some(call) }
    }

    pub(crate) fn stream(stream: StreamBody, call: Call) -> Body {
        Body { kind: Kind::Stream(Box::new(stream)), call: Some(call) }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Some(call) = &self.call {
            call.hand_over();
        }
    }
}

impl http_body::Body for Body {
    type Data = Piece;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, Infallible>>> {
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
        if let Some(call) = &this.call {
            // The previous frame was sent, because the library now polls for the next one.
            call.progress.send(1);
            call.progress.wait_for(Awaited::Write);
            call.set_phase(CallPhase::Answer);
        }
        Poll::Ready(frame.map(|frame| Ok(frame.map_data(|bytes| Piece { bytes, call: this.call.clone() }))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.kind, Kind::Nothing)
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, sent: usize) {
        if let Some(call) = &self.call {
            call.progress.send(sent);
        }
        self.bytes.advance(sent);
    }
}
