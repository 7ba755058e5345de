//! How are gRPC clients served that put a socket's path where a host belongs?
//!
//! Over a Unix socket, gRPC's C, C++ and Python clients send the socket's path, percent-encoded, as `:authority`. Our HTTP/2
//! library ends such streams with PROTOCOL_ERROR, because a path is no host. Nobody here asks for the host, so this reader
//! writes another one over it: of the same length on the wire, so that no byte moves, and never longer once decoded, so
//! that the two ends' header tables cannot part (an entry may only be evicted too late on our side, which is harmless).

mod frames;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

use frames::Frames;

/// A Unix stream of HTTP/2 whose requests name a host that is one.
pub(super) struct Local<S> {
    stream: S,
    frames: Frames,
    /// Bytes read that wait for the rest of their frame.
    held: Vec<u8>,
}

impl<S> Local<S> {
    pub(super) fn new(stream: S) -> Local<S> {
        Local { stream, frames: Frames::new(), held: Vec::new() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Local<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let before = buf.filled().len();
            if buf.remaining() <= this.held.len() {
                // The reader's buffer is too small to complete the frame: it gets what there is, as it is.
                let part = buf.remaining().min(this.held.len());
                buf.put_slice(&this.held[..part]);
                this.held.drain(..part);
                this.frames.give_up();
                return Poll::Ready(Ok(()));
            }
            buf.put_slice(&this.held);
            let again = buf.filled().len();
            let outcome = Pin::new(&mut this.stream).poll_read(cx, buf);
            if !matches!(outcome, Poll::Ready(Ok(()))) {
                buf.set_filled(before);
                return outcome;
            }
            if buf.filled().len() == again {
                // The end of the stream: an incomplete frame stays one.
                this.held.clear();
                return outcome;
            }
            let whole = this.frames.patch(&mut buf.filled_mut()[before..]);
            this.held = buf.filled()[before + whole..].to_vec();
            buf.set_filled(before + whole);
            if whole > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

nerite_listen::forward_writes!(Local);
