//! How are several pieces of memory sent as one body?

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// The JSON and the tensors of a request. They are sent one after the other, without copying them into one piece of memory.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    rest: std::vec::IntoIter<Bytes>,
}

impl Pieces {
    pub(super) fn new(mut pieces: Vec<Bytes>) -> Pieces {
        pieces.retain(|piece| !piece.is_empty());
        Pieces { rest: pieces.into_iter() }
    }

    pub(super) fn byte_size(&self) -> u64 {
        self.rest.as_slice().iter().map(|piece| piece.len() as u64).sum()
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.rest.next().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.as_slice().is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.byte_size())
    }
}
