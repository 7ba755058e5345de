//! How does a request's body arrive?

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use nerite_api::BodyCounter;
use nerite_listen::{Awaited, Progress};

/// The body of a request. It records in its connection's progress whether the server waits for it.
#[derive(Debug)]
pub struct Incoming {
    body: hyper::body::Incoming,
    progress: Arc<Progress>,
    /// Set if the client has a quota of bytes.
    counter: Option<BodyCounter>,
}

impl Incoming {
    /// A body of the connection with this progress.
    pub fn new(body: hyper::body::Incoming, progress: Arc<Progress>) -> Incoming {
        Incoming { body, progress, counter: None }
    }

    /// The same body, whose bytes are counted from here on.
    pub fn counted(self, counter: Option<BodyCounter>) -> Incoming {
        Incoming { counter, ..self }
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.body).poll_frame(cx);
        if let (Some(counter), Poll::Ready(Some(Ok(frame)))) = (&this.counter, &frame) {
            counter.add(frame.data_ref().map_or(0, Bytes::len));
        }
        this.progress.wait_for(if frame.is_pending() { Awaited::Body } else { Awaited::Nothing });
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer. When it is dropped, it records in its connection's progress that the server waits for the next request.
#[derive(Debug)]
pub struct Answering<B> {
    body: B,
    progress: Arc<Progress>,
}

impl<B> Answering<B> {
    /// An answer on the connection with this progress.
    pub fn new(body: B, progress: Arc<Progress>) -> Answering<B> {
        Answering { body, progress }
    }
}

impl<B: Body + Unpin> Body for Answering<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for Answering<B> {
    fn drop(&mut self) {
        self.progress.wait_for(Awaited::Request);
    }
}
