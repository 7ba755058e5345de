//! What has a connection done, and what does it wait for?
//!
//! The task that serves a connection notes here what it waits for. Others look: the connection's own timer, and whoever
//! needs a place for a newcomer. Notes are plain stores, because they are made several times a request.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// What the server waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Awaited {
    /// Nothing of the client: its request is complete and being worked on.
    Nothing,
    /// The next request, on a connection that has carried one.
    Request,
    /// The first request, or the rest of a request's head.
    Head,
    /// The rest of a request's body.
    Body,
    /// That the client takes bytes of its answer.
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

/// The notes of one connection, or of one call on it.
#[derive(Debug)]
pub struct Progress {
    awaited: AtomicU8,
    blocked: AtomicBool,
    requests: AtomicU32,
    received: AtomicU64,
    sent: AtomicU64,
}

/// The notes at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// What is waited for.
    pub awaited: Awaited,
    /// Requests whose head was complete.
    pub requests: u32,
    /// Bytes that came.
    pub received: u64,
    /// Bytes that went.
    pub sent: u64,
}

impl Progress {
    /// Of a connection or call that waits for this.
    pub fn new(awaited: Awaited) -> Progress {
        Progress {
            awaited: AtomicU8::new(awaited as u8),
            blocked: AtomicBool::new(false),
            requests: AtomicU32::new(0),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        }
    }

    /// What is waited for now.
    pub fn awaited(&self) -> Awaited {
        if self.blocked.load(Ordering::Relaxed) {
            return Awaited::Write;
        }
        Awaited::from_number(self.awaited.load(Ordering::Relaxed))
    }

    /// Whether the connection could go without a loss: no request of it has begun.
    pub fn is_idle(&self) -> bool {
        matches!(self.awaited(), Awaited::Request | Awaited::Head)
    }

    /// Notes what is waited for from now on.
    pub fn wait_for(&self, awaited: Awaited) {
        self.awaited.store(awaited as u8, Ordering::Relaxed);
    }

    /// Notes that a request's head is complete, or the message before it. Nothing is waited for then.
    pub fn begin_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.wait_for(Awaited::Nothing);
    }

    /// Notes that bytes came.
    pub fn receive(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Notes that bytes went.
    pub fn send(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Notes whether the client's side takes no more bytes for now.
    pub fn set_blocked(&self, blocked: bool) {
        self.blocked.store(blocked, Ordering::Relaxed);
    }

    /// All notes. They are taken one after the other, which is exact enough for limits of seconds.
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
    fn what_blocks_comes_before_what_is_awaited() {
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
