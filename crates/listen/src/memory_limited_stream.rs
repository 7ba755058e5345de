//! What if clients make us take buffers for what they never send?
//!
//! A protocol's library takes a buffer when it knows what is to come: of HTTP/2 a whole frame when it has its head, of HTTP/1 twice as
//! much each time the buffer was full. It cannot be refused memory. But how much it took is seen when it asks for bytes, and a
//! connection whose buffer is the one too many can be ended before there are more of them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use nerite_budget::{Account, Charge};
use nerite_memory::is_short;
use tokio::io::{AsyncRead, ReadBuf};

/// Smaller buffers are taken unseen.
const BUFFER_BYTES_MIN: usize = 64 << 10;
/// So many bytes may come between two looks, in buffers no larger than before.
const BYTES_BETWEEN_LOOKS: usize = 4 << 20;

/// A buffer up to this size stays a connection's own; a larger one is a single frame's, and goes with it.
const KEPT_BUFFER_BYTES_MAX: usize = 512 << 10;

/// A connection that ends when it wants a buffer and memory is short, and pays for its buffer.
#[derive(Debug)]
pub struct MemoryLimitedStream<S> {
    stream: S,
    charge: Charge,
    /// The largest buffer so far; 0 before the first.
    largest: usize,
    /// Bytes read since the last look.
    unseen: usize,
}

impl<S> MemoryLimitedStream<S> {
    /// The same connection, watched.
    pub fn new(stream: S, account: &Account) -> MemoryLimitedStream<S> {
        MemoryLimitedStream { stream, charge: account.charge(0), largest: 0, unseen: 0 }
    }

    /// Charges the buffer that has room for so many bytes.
    fn pay(&mut self, room: usize) {
        let kept = self.charge.bytes();
        let is_a_frames_own = room.max(kept) > KEPT_BUFFER_BYTES_MAX;
        if is_a_frames_own || (room >= BUFFER_BYTES_MIN && room > kept) {
            self.charge.resize(room);
        }
    }

    /// Whether to look, for a buffer with room for so many bytes.
    fn is_due(&mut self, room: usize) -> bool {
        let first = self.largest == 0;
        let grown = room >= BUFFER_BYTES_MIN && room > self.largest;
        self.largest = self.largest.max(room);
        let due = first || grown || self.unseen >= BYTES_BETWEEN_LOOKS;
        if due {
            self.unseen = 0;
        }
        due
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MemoryLimitedStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let room = buf.remaining();
        this.pay(room);
        if this.is_due(room) && is_short() {
            let text = format!("no memory is left for a client that wants a buffer of {room} bytes");
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::OutOfMemory, text)));
        }
        let before = buf.filled().len();
        let outcome = Pin::new(&mut this.stream).poll_read(cx, buf);
        this.unseen += buf.filled().len() - before;
        outcome
    }
}

crate::forward_writes!(MemoryLimitedStream);

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(reads: &[(usize, usize)], looks: &[usize]) {
        let (mut limited, mut found) = (MemoryLimitedStream::new((), &Account::unlimited()), Vec::new());
        for (at, (room, read)) in reads.iter().enumerate() {
            if limited.is_due(*room) {
                found.push(at);
            }
            limited.unseen += read;
        }
        assert_eq!(found, looks, "{reads:?}");
    }

    #[test]
    fn a_buffer_is_paid_for_and_a_frames_own_goes_with_the_frame() {
        const KIB: usize = 1 << 10;
        let mut limited = MemoryLimitedStream::new((), &Account::unlimited());
        for (room, paid) in [(8, 0), (100, 100), (20, 100), (400, 400), (4096, 4096), (3000, 3000), (8, 8), (70, 70)] {
            limited.pay(room * KIB);
            assert_eq!(limited.charge.bytes(), paid * KIB, "room for {room} KiB");
        }
    }

    #[test]
    fn it_looks_at_first_when_a_buffer_grows_and_when_much_came() {
        const KIB: usize = 1 << 10;
        check(&[(8 * KIB, 100), (8 * KIB, 100), (16 * KIB, 100)], &[0]);
        check(&[(8 * KIB, 100), (64 * KIB, 100), (64 * KIB, 100), (100 * KIB, 0), (99 * KIB, 0)], &[0, 1, 3]);
        check(&[(9, 9), (4096 * KIB, 4096 * KIB), (4096 * KIB, KIB), (4096 * KIB, 4095 * KIB), (9, 0)], &[0, 1, 2, 4]);
    }
}
