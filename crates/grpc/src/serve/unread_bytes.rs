//! How many unread bytes of a client are in the HTTP/2 library?
//!
//! The library keeps DATA frames until their call takes them, up to the connection's window. This reader parses the heads of frames and charges the
//! bytes that arrive. Calls release the bytes that they take. It also limits the header blocks that are read in one poll of the connection, because a
//! few bytes of them can become many times as much when decoded. Decoded headers are dispatched, which keeps only a part of them, and other
//! connections are polled before more is read. The library reads again after each call that it dispatches, so the limit applies to the whole poll.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use nerite_budget::Account;
use nerite_listen::BodyReadLimit;
use tokio::io::{AsyncRead, ReadBuf};

use super::connection_calls::ConnectionCalls;
use super::position::Position;
use crate::limits::{FRAME_COST_BYTES, HEADER_BYTES_AT_ONCE, UNREAD_BYTES_MAX};

/// Bytes that arrived on a connection and were not taken by its calls.
#[derive(Debug)]
pub(crate) struct Unread {
    account: Account,
    bytes: AtomicUsize,
    /// Number of calls that may take some of them.
    calls: AtomicUsize,
}

/// The handle with which one call reports the bytes that it took. When no handle is left, all bytes of the connection count as taken.
#[derive(Debug)]
pub(crate) struct UnreadOfCall(Arc<Unread>);

impl Unread {
    pub(crate) fn new(account: &Account) -> Arc<Unread> {
        Arc::new(Unread { account: account.clone(), bytes: AtomicUsize::new(0), calls: AtomicUsize::new(0) })
    }

    pub(crate) fn of_call(self: &Arc<Self>) -> UnreadOfCall {
        self.calls.fetch_add(1, Ordering::Relaxed);
        UnreadOfCall(Arc::clone(self))
    }

    /// Counts bytes that arrived, up to a limit. The library drops the bytes that a call leaves unread. They stay counted until no call is left, so
    /// the count could grow without the limit.
    fn arrived(&self, bytes: usize) {
        if self.bytes.load(Ordering::Relaxed) < UNREAD_BYTES_MAX {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.account.add(bytes);
        }
    }

    fn taken(&self, bytes: usize) {
        let less = |unread: usize| Some(unread.saturating_sub(bytes));
        let before = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).unwrap_or_default();
        self.account.release(bytes.min(before));
    }
}

impl UnreadOfCall {
    /// Call this when the call has taken a frame of `bytes` bytes.
    pub(crate) fn took(&self, bytes: usize) {
        self.0.taken(bytes + FRAME_COST_BYTES);
    }
}

impl Drop for UnreadOfCall {
    fn drop(&mut self) {
        if self.0.calls.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.taken(usize::MAX);
        }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.taken(usize::MAX);
    }
}

/// An HTTP/2 stream whose frames are counted as they are read.
pub(super) struct Metered<S> {
    stream: S,
    position: Position,
    unread: Arc<Unread>,
    connection_calls: Arc<ConnectionCalls>,
    read_limit: BodyReadLimit,
}

impl<S> Metered<S> {
    pub(super) fn new(stream: S, unread: &Arc<Unread>, connection_calls: &Arc<ConnectionCalls>) -> Metered<S> {
        let (read_limit, connection_calls) = (BodyReadLimit::new(&unread.account), Arc::clone(connection_calls));
        Metered { stream, position: Position::new(), unread: Arc::clone(unread), connection_calls, read_limit }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.connection_calls.header_bytes() > HEADER_BYTES_AT_ONCE {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(this.read_limit.poll_socket_ready(cx));
        let before = buf.filled().len();
        let outcome = Pin::new(&mut this.stream).poll_read(cx, buf);
        let read = &buf.filled()[before..];
        if read.is_empty() {
            return outcome;
        }
        let found = this.position.pass(read);
        this.connection_calls.set_frames(this.position.frames());
        if found.header_bytes > 0 {
            this.connection_calls.add_header_bytes(found.header_bytes);
        }
        if found.data_frames + found.data_bytes > 0 {
            this.unread.arrived(found.data_bytes + found.data_frames * FRAME_COST_BYTES);
        }
        outcome
    }
}

nerite_listen::forward_writes!(Metered);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_charged_until_they_are_taken_or_no_call_is_left() {
        let account = Account::unlimited();
        let (unread, bare) = (Unread::new(&account), account.held());
        let (one, two) = (unread.of_call(), unread.of_call());
        unread.arrived(1000 + FRAME_COST_BYTES);
        assert_eq!(account.held(), bare + 1000 + FRAME_COST_BYTES as u64);
        one.took(600);
        assert_eq!(account.held(), bare + 400);
        drop(one);
        assert_eq!(account.held(), bare + 400);
        drop(two);
        assert_eq!(account.held(), bare);
        unread.arrived(2 * UNREAD_BYTES_MAX);
        unread.arrived(1);
        drop(unread);
        assert_eq!(account.held(), bare);
    }
}
