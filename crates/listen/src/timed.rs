//! How is the progress of a connection's bytes recorded?

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::progress::{Awaited, Progress};

/// A connection that records its progress. It wraps the socket itself, below any buffer, so it records when the kernel takes the bytes.
#[derive(Debug)]
pub struct Timed<S> {
    stream: S,
    progress: Arc<Progress>,
}

impl<S> Timed<S> {
    /// Wraps a connection, and records in `progress`.
    pub fn new(stream: S, progress: Arc<Progress>) -> Timed<S> {
        Timed { stream, progress }
    }

    fn note_sent(&self, outcome: &Poll<io::Result<usize>>) {
        self.progress.set_blocked(outcome.is_pending());
        if let Poll::Ready(Ok(sent)) = outcome {
            self.progress.send(*sent);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let outcome = Pin::new(&mut this.stream).poll_read(cx, buf);
        let received = buf.filled().len() - before;
        if received > 0 {
            this.progress.receive(received);
            // The first bytes after a request are the head of the next one.
            if this.progress.awaited() == Awaited::Request {
                this.progress.wait_for(Awaited::Head);
            }
        }
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.note_sent(&outcome);
        outcome
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_write_vectored(cx, slices);
        this.note_sent(&outcome);
        outcome
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
