//! What has a connection done, and what does the server wait for on it?
//! The task that serves a connection writes its progress. The connection's timer and the search for a connection to evict read it. Writes are relaxed atomic
//! stores, because there are several in each request.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// What the server waits for on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Awaited {
    /// Nothing: the request is complete and being processed.
    Nothing,
    /// The next request, on a connection that has carried one.
    Request,
    /// The first request, or the rest of a request's head.
    Head,
    /// The rest of a request's body.
    Body,
    /// A client that reads bytes of its answer.
    Write,
}

impl Awaited {
    fn from_number(number: u8) -> Awaited {
        match number {
            0 => Awaited::Nothing,
            1 => Awaited::Request,
            2 => Awaited::Head,
            3 => Awaited::Body,
            _ => Awaited::Write,
        }
    }
}

/// The progress of one connection, or of one call on it.
#[derive(Debug)]
pub struct Progress {
    awaited: AtomicU8,
    blocked: AtomicBool,
    requests: AtomicU32,
    received: AtomicU64,
    sent: AtomicU64,
}

/// The progress at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// What the server waits for.
    pub awaited: Awaited,
    /// Requests whose head arrived completely.
    pub requests: u32,
    /// Bytes received.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
}

impl Progress {
    /// The progress of a connection or call that waits for `awaited`.
    pub fn new(awaited: Awaited) -> Progress {
        Progress {
            awaited: AtomicU8::new(awaited as u8),
            blocked: AtomicBool::new(false),
            requests: AtomicU32::new(0),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        }
    }

    /// What the server waits for now.
    pub fn awaited(&self) -> Awaited {
        if self.blocked.load(Ordering::Relaxed) {
            return Awaited::Write;
        }
        Awaited::from_number(self.awaited.load(Ordering::Relaxed))
    }

    /// Whether the connection can be closed without losing a request: none has begun.
    pub fn is_idle(&self) -> bool {
        matches!(self.awaited(), Awaited::Request | Awaited::Head)
    }

    /// Sets what the server waits for.
    pub fn wait_for(&self, awaited: Awaited) {
        self.awaited.store(awaited as u8, Ordering::Relaxed);
    }

    /// Records that a request's head, or the message in place of it, is complete. The server waits for nothing then.
    pub fn begin_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.wait_for(Awaited::Nothing);
    }

    /// Adds received bytes.
    pub fn receive(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Adds sent bytes.
    pub fn send(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Sets whether the socket accepts no more bytes at the moment.
    pub fn set_blocked(&self, blocked: bool) {
        self.blocked.store(blocked, Ordering::Relaxed);
    }

    /// All values. They are read one after the other, which is exact enough for limits of seconds.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            awaited: self.awaited(),
            requests: self.requests.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_write_hides_what_is_awaited() {
        for awaited in [Awaited::Nothing, Awaited::Request, Awaited::Head, Awaited::Body, Awaited::Write] {
            let progress = Progress::new(awaited);
            assert_eq!(progress.awaited(), awaited);
            progress.set_blocked(true);
            assert_eq!(progress.awaited(), Awaited::Write);
            progress.set_blocked(false);
            assert_eq!(progress.is_idle(), matches!(awaited, Awaited::Request | Awaited::Head));
        }
    }
}
