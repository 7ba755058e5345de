//! How is the memory of connections' read buffers limited?
//!
//! The protocol library allocates a read buffer before the bytes arrive: for a whole frame of HTTP/2 once it has the frame's header, and
//! twice the size of a full buffer of HTTP/1. Clients could make it allocate for bytes that they never send, and these allocations cannot
//! be refused. But the size of the buffer is visible when the library reads into it. If memory is short then, the connection is ended.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use nerite_budget::{Account, Charge};
use nerite_memory::is_short;
use tokio::io::{AsyncRead, ReadBuf};

/// Smaller buffers are not checked.
const BUFFER_BYTES_MIN: usize = 64 << 10;
/// Memory is checked again after this many bytes, even if the buffer did not grow.
const BYTES_BETWEEN_CHECKS: usize = 4 << 20;

/// The library keeps a buffer up to this size for the connection. A larger one belongs to a single frame and is freed with it.
const KEPT_BUFFER_BYTES_MAX: usize = 512 << 10;

/// A connection whose read buffer is charged to its account, and whose reads fail when memory is short.
#[derive(Debug)]
pub struct MemoryLimitedStream<S> {
    stream: S,
    charge: Charge,
    /// The largest buffer so far. 0 before the first.
    largest: usize,
    /// Bytes read since the last check.
    unchecked: usize,
}

impl<S> MemoryLimitedStream<S> {
    /// Wraps a connection, and charges its buffer to `account`.
    pub fn new(stream: S, account: &Account) -> MemoryLimitedStream<S> {
        MemoryLimitedStream { stream, charge: account.charge(0), largest: 0, unchecked: 0 }
    }

    /// Charges a buffer with `capacity` bytes left.
    fn charge_buffer(&mut self, capacity: usize) {
        let kept = self.charge.bytes();
        let is_of_one_frame = capacity.max(kept) > KEPT_BUFFER_BYTES_MAX;
        if is_of_one_frame || (capacity >= BUFFER_BYTES_MIN && capacity > kept) {
            self.charge.resize(capacity);
        }
    }

    /// Whether to check memory before reading into a buffer with `capacity` bytes left.
    fn is_due(&mut self, capacity: usize) -> bool {
        let first = self.largest == 0;
        let grown = capacity >= BUFFER_BYTES_MIN && capacity > self.largest;
        self.largest = self.largest.max(capacity);
        let due = first || grown || self.unchecked >= BYTES_BETWEEN_CHECKS;
        if due {
            self.unchecked = 0;
        }
        due
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MemoryLimitedStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let capacity = buf.remaining();
        this.charge_buffer(capacity);
        if this.is_due(capacity) && is_short() {
            let text = format!("no memory is left for a client that wants a buffer of {capacity} bytes");
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::OutOfMemory, text)));
        }
        let before = buf.filled().len();
        let outcome = Pin::new(&mut this.stream).poll_read(cx, buf);
        this.unchecked += buf.filled().len() - before;
        outcome
    }
}

crate::forward_writes!(MemoryLimitedStream);

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(reads: &[(usize, usize)], checks: &[usize]) {
        let (mut limited, mut found) = (MemoryLimitedStream::new((), &Account::unlimited()), Vec::new());
        for (at, (capacity, read)) in reads.iter().enumerate() {
            if limited.is_due(*capacity) {
                found.push(at);
            }
            limited.unchecked += read;
        }
        assert_eq!(found, checks, "{reads:?}");
    }

    #[test]
    fn a_buffer_is_charged_and_that_of_a_frame_until_the_frame_ends() {
        const KIB: usize = 1 << 10;
        let mut limited = MemoryLimitedStream::new((), &Account::unlimited());
        for (capacity, charged) in
            [(8, 0), (100, 100), (20, 100), (400, 400), (4096, 4096), (3000, 3000), (8, 8), (70, 70)]
        {
            limited.charge_buffer(capacity * KIB);
            assert_eq!(limited.charge.bytes(), charged * KIB, "capacity for {capacity} KiB");
        }
    }

    #[test]
    fn memory_is_checked_first_when_a_buffer_grows_and_after_many_bytes() {
        const KIB: usize = 1 << 10;
        check(&[(8 * KIB, 100), (8 * KIB, 100), (16 * KIB, 100)], &[0]);
        check(&[(8 * KIB, 100), (64 * KIB, 100), (64 * KIB, 100), (100 * KIB, 0), (99 * KIB, 0)], &[0, 1, 3]);
        check(&[(9, 9), (4096 * KIB, 4096 * KIB), (4096 * KIB, KIB), (4096 * KIB, 4095 * KIB), (9, 0)], &[0, 1, 2, 4]);
    }
}
