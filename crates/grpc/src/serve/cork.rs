//! How are the frames of one poll sent together?
//!
//! The HTTP/2 library writes a message of more than 256 bytes, and the frames after it, with separate system calls: two for each answer. The client
//! is woken by the first one, which does not complete the answer. This writer collects small writes until the connection has nothing more to write
//! ([`Held::poll_drain`]), and then sends them with one call. Large writes are not collected: they are sent at once, after the collected bytes.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use nerite_locks::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::limits::{HELD_BYTES_MAX, SLICES_MAX};

/// A stream that collects small writes until [`Held::poll_drain`].
pub(super) struct Corked<S>(Arc<Mutex<State<S>>>);

/// The handle that sends collected bytes.
pub(super) struct Held<S>(Arc<Mutex<State<S>>>);

struct State<S> {
    stream: S,
    held: BytesMut,
    /// Whether something was written since the last flush.
    unflushed: bool,
}

/// The stream for the library, and the handle that sends its bytes.
pub(super) fn cork<S>(stream: S) -> (Corked<S>, Held<S>) {
    let state = Arc::new(Mutex::new(State { stream, held: BytesMut::new(), unflushed: false }));
    (Corked(Arc::clone(&state)), Held(state))
}

/// Both are used by the same task, so the lock is never contended.
fn lock<S>(state: &Mutex<State<S>>) -> MutexGuard<'_, State<S>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: AsyncWrite + Unpin> Held<S> {
    /// Sends collected bytes. Call this each time after the connection was polled, with the same waker.
    pub(super) fn poll_drain(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = lock(&self.0);
        ready!(state.poll_send_held(cx))?;
        if state.unflushed {
            ready!(Pin::new(&mut state.stream).poll_flush(cx))?;
            state.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> State<S> {
    fn poll_send_held(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            let sent = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.held))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.held.advance(sent);
        }
        Poll::Ready(Ok(()))
    }

    /// Collects `slices` if they are small. Otherwise sends them after the collected bytes, with one call if possible.
    fn poll_take(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let len: usize = slices.iter().map(|slice| slice.len()).sum();
        self.unflushed = true;
        if self.held.len() + len <= HELD_BYTES_MAX {
            for slice in slices {
                self.held.extend_from_slice(slice);
            }
            return Poll::Ready(Ok(len));
        }
        loop {
            let mut all = [IoSlice::new(&[]); SLICES_MAX];
            let first = usize::from(!self.held.is_empty());
            if first == 1 {
                all[0] = IoSlice::new(&self.held);
            }
            let taken = slices.len().min(SLICES_MAX - first);
            all[first..first + taken].copy_from_slice(&slices[..taken]);
            let sent = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, &all[..first + taken]))?;
            let before = self.held.len();
            self.held.advance(sent.min(before));
            if sent > before || sent == 0 {
                return Poll::Ready(Ok(sent.saturating_sub(before)));
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Corked<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.0).stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Corked<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        lock(&self.0).poll_take(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        lock(&self.0).poll_take(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing: the task that polls the connection calls `poll_drain` afterwards.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = lock(&self.0);
        ready!(state.poll_send_held(cx))?;
        Pin::new(&mut state.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::task::Waker;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Accepts at most `capacity` bytes per call, and records each call.
    struct Narrow {
        capacity: usize,
        calls: Vec<Vec<u8>>,
        blocked: bool,
    }

    impl AsyncWrite for Narrow {
        fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            if self.blocked {
                return Poll::Pending;
            }
            let mut all: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
            all.truncate(self.capacity);
            let sent = all.len();
            self.calls.push(all);
            Poll::Ready(Ok(sent))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Writes pieces of these lengths, drains, and compares the lengths of the calls. No byte may be lost.
    #[track_caller]
    fn check(capacity: usize, pieces: &[usize], calls: &[usize]) {
        let (mut corked, held) = cork(Narrow { capacity, calls: Vec::new(), blocked: false });
        let mut cx = Context::from_waker(Waker::noop());
        let mut given = Vec::new();
        for (number, len) in pieces.iter().enumerate() {
            let piece: Vec<u8> = (0..*len).map(|at| (at * 7 + number) as u8).collect();
            given.extend_from_slice(&piece);
            let mut left = &piece[..];
            while !left.is_empty() {
                let (server, back) = left.split_at(left.len() / 2);
                let slices = [IoSlice::new(server), IoSlice::new(back)];
                let Poll::Ready(Ok(sent)) = Pin::new(&mut corked).poll_write_vectored(&mut cx, &slices) else {
                    panic!()
                };
                assert!(sent > 0);
                left = &left[sent..];
            }
        }
        assert!(held.poll_drain(&mut cx).is_ready());
        let state = lock(&held.0);
        assert_eq!(state.stream.calls.iter().map(Vec::len).collect::<Vec<_>>(), calls);
        assert_eq!(state.stream.calls.concat(), given);
    }

    #[test]
    fn small_writes_are_sent_together() {
        check(usize::MAX, &[100, 4096, 10], &[4206]);
        check(usize::MAX, &[1], &[1]);
        check(usize::MAX, &[], &[]);
    }

    #[test]
    fn a_large_write_is_sent_after_collected_bytes() {
        let large = 10 * HELD_BYTES_MAX;
        check(usize::MAX, &[large], &[large]);
        check(usize::MAX, &[100, large, 10], &[100 + large, 10]);
    }

    #[test]
    fn a_stream_with_little_capacity_gets_every_byte_in_order() {
        check(7, &[3, 20], &[7, 7, 7, 2]);
        let large = HELD_BYTES_MAX + 1;
        check(HELD_BYTES_MAX, &[100, large], &[HELD_BYTES_MAX, 101]);
        check(100, &[100, 100 * 300], &[&[100; 137][..], &[100; 164]].concat());
    }

    #[test]
    fn bytes_that_cannot_be_sent_now_are_sent_later() {
        let (mut corked, held) = cork(Narrow { capacity: usize::MAX, calls: Vec::new(), blocked: true });
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut corked).poll_write(&mut cx, b"now").is_ready());
        assert!(held.poll_drain(&mut cx).is_pending());
        lock(&held.0).stream.blocked = false;
        assert!(held.poll_drain(&mut cx).is_ready());
        assert_eq!(lock(&held.0).stream.calls, [b"now"]);
    }

    #[tokio::test]
    async fn closing_sends_all_collected_bytes() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let (mut corked, held) = cork(ours);
        corked.write_all(b"last words").await.unwrap();
        corked.shutdown().await.unwrap();
        drop((corked, held));
        let mut heard = Vec::new();
        theirs.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"last words");
        assert!(poll_fn(|cx| cork(tokio::io::empty()).1.poll_drain(cx)).await.is_ok());
    }
}
