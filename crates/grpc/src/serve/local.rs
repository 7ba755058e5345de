//! How are gRPC clients served if they send a socket's path as the host?
//!
//! Over a Unix socket, gRPC's C, C++ and Python clients send the socket's percent-encoded path as `:authority`. The HTTP/2 library ends such streams
//! with PROTOCOL_ERROR, because a path is not a valid host. The host has no meaning here, so this reader overwrites the path with a valid host. The
//! new value has the same length on the wire, so no byte moves. It is never longer after decoding, so the header tables of both ends agree, except
//! that an entry may be evicted too late here, which is harmless.

mod frames;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

use frames::Frames;

/// A Unix stream of HTTP/2. Requests that are read from it name a valid host.
pub(super) struct Local<S> {
    stream: S,
    frames: Frames,
    /// Bytes of an incomplete frame. They wait for the rest.
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
                // The reader's buffer is too small for the complete frame. It gets the available bytes unchanged.
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
                // The stream has ended, so the frame remains incomplete.
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
