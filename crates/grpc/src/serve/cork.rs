//! How are the frames of one poll sent together?
//!
//! The HTTP/2 library writes a message of more than 256 bytes, and the frames after it, with separate system calls: two for each answer. The client
//! is woken by the first one, which does not complete the answer. This writer collects small writes until the connection has nothing more to write
//! ([`Held::poll_drain`]), and then sends them with one call. Large writes are not collected: they are sent at once, after the collected bytes.
//!
//! The library owns the stream that it reads and writes, and gives no access to it. So the library gets a [`Corked`], which contains no stream. While
//! the library is polled, the real stream is in a thread-local variable. Otherwise it is in [`Held`]. This needs no lock.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::limits::{HELD_BYTES_MAX, SLICES_MAX};

thread_local! {
    /// The stream of the connection that this thread polls.
    static POLLED: RefCell<Option<Box<dyn Collect>>> = const { RefCell::new(None) };
}

/// The stream for the library. It works only within [`Held::polling`].
pub(super) struct Corked(());

/// The real stream while the library is not polled, and the bytes that were collected.
pub(super) struct Held(Option<Box<dyn Collect>>);

/// A stream that collects small writes until it is drained.
trait Collect: Send {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>>;
    fn poll_take(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>>;
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

struct State<S> {
    stream: S,
    held: BytesMut,
    /// Whether something was written since the last flush.
    unflushed: bool,
}

/// The stream for the library, and the handle that sends its bytes.
pub(super) fn cork<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S) -> (Corked, Held) {
    let state = State { stream, held: BytesMut::new(), unflushed: false };
    (Corked(()), Held(Some(Box::new(state))))
}

impl Held {
    /// Calls `poll`. Only during this call can the [`Corked`] that was made with this be read and written.
    pub(super) fn polling<T>(&mut self, poll: impl FnOnce() -> T) -> T {
        /// Takes the stream back, also if the poll panics.
        struct TakeBack<'h> {
            held: &'h mut Held,
            outer: Option<Box<dyn Collect>>,
        }
        impl Drop for TakeBack<'_> {
            fn drop(&mut self) {
                self.held.0 = POLLED.replace(self.outer.take());
            }
        }
        let outer = POLLED.replace(self.0.take());
        let _take_back = TakeBack { held: self, outer };
        poll()
    }

    /// Sends collected bytes. Call this each time after the connection was polled, with the same waker.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().map_or(Poll::Ready(Ok(())), |stream| stream.poll_drain(cx))
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
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Collect for State<S> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
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

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send_held(cx))?;
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send_held(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Calls `poll` with the stream of the connection that this thread polls. Returns an error if the thread polls none.
fn polled<T>(poll: impl FnOnce(&mut dyn Collect) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
    POLLED.with_borrow_mut(|stream| match stream {
        Some(stream) => poll(&mut **stream),
        None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
    })
}

impl AsyncRead for Corked {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        polled(|stream| stream.poll_read(cx, buf))
    }
}

impl AsyncWrite for Corked {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        polled(|stream| stream.poll_take(cx, &[IoSlice::new(bytes)]))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        polled(|stream| stream.poll_take(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing: the task that polls the connection calls `poll_drain` afterwards.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        polled(|stream| stream.poll_shutdown(cx))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;
    use std::sync::{Arc, Mutex};
    use std::task::Waker;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Accepts at most `capacity` bytes per call, and records each call.
    #[derive(Clone)]
    struct Narrow {
        capacity: usize,
        calls: Arc<Mutex<Vec<Vec<u8>>>>,
        blocked: Arc<Mutex<bool>>,
    }

    impl Narrow {
        fn new(capacity: usize) -> Narrow {
            Narrow { capacity, calls: Arc::default(), blocked: Arc::default() }
        }
    }

    impl AsyncRead for Narrow {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Narrow {
        fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            if *self.blocked.lock().unwrap() {
                return Poll::Pending;
            }
            let mut all: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
            all.truncate(self.capacity);
            let sent = all.len();
            self.calls.lock().unwrap().push(all);
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
        let stream = Narrow::new(capacity);
        let (mut corked, mut held) = cork(stream.clone());
        let mut cx = Context::from_waker(Waker::noop());
        let mut given = Vec::new();
        for (number, len) in pieces.iter().enumerate() {
            let piece: Vec<u8> = (0..*len).map(|at| (at * 7 + number) as u8).collect();
            given.extend_from_slice(&piece);
            let mut left = &piece[..];
            while !left.is_empty() {
                let (server, back) = left.split_at(left.len() / 2);
                let slices = [IoSlice::new(server), IoSlice::new(back)];
                let write = held.polling(|| Pin::new(&mut corked).poll_write_vectored(&mut cx, &slices));
                let Poll::Ready(Ok(sent)) = write else { panic!() };
                assert!(sent > 0);
                left = &left[sent..];
            }
        }
        assert!(held.poll_drain(&mut cx).is_ready());
        let made = stream.calls.lock().unwrap();
        assert_eq!(made.iter().map(Vec::len).collect::<Vec<_>>(), calls);
        assert_eq!(made.concat(), given);
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
        let stream = Narrow::new(usize::MAX);
        let (mut corked, mut held) = cork(stream.clone());
        let mut cx = Context::from_waker(Waker::noop());
        *stream.blocked.lock().unwrap() = true;
        assert!(held.polling(|| Pin::new(&mut corked).poll_write(&mut cx, b"now")).is_ready());
        assert!(held.poll_drain(&mut cx).is_pending());
        *stream.blocked.lock().unwrap() = false;
        assert!(held.poll_drain(&mut cx).is_ready());
        assert_eq!(*stream.calls.lock().unwrap(), [b"now"]);
    }

    #[tokio::test]
    async fn closing_sends_all_collected_bytes() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let (mut corked, mut held) = cork(ours);
        {
            let mut speak = pin!(async {
                corked.write_all(b"last words").await.unwrap();
                corked.shutdown().await.unwrap();
            });
            poll_fn(|cx| held.polling(|| speak.as_mut().poll(cx))).await;
        }
        drop((corked, held));
        let mut heard = Vec::new();
        theirs.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"last words");
    }

    #[test]
    fn the_stream_is_there_only_while_it_is_polled_and_comes_back_after_a_panic() {
        let stream = Narrow::new(usize::MAX);
        let (mut corked, mut held) = cork(stream.clone());
        let mut cx = Context::from_waker(Waker::noop());
        let mut write = || Pin::new(&mut corked).poll_write(&mut cx, b"x");
        assert!(matches!(write(), Poll::Ready(Err(_))));
        let (_, mut other) = cork(Narrow::new(usize::MAX));
        let panics = || held.polling(|| other.polling(|| panic!("thrown on purpose")));
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert!(matches!(write(), Poll::Ready(Err(_))));
        assert!(matches!(held.polling(write), Poll::Ready(Ok(1))));
        assert!(held.poll_drain(&mut Context::from_waker(Waker::noop())).is_ready());
        assert_eq!(*stream.calls.lock().unwrap(), [b"x"]);
    }
}
