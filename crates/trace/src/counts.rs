//! What became of traces?

use std::sync::atomic::{AtomicU64, Ordering};

/// What became of traces since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceCounts {
    /// They are in a file, or a collector has them.
    pub written: u64,
    /// Of these, some notes or bytes of tensors were left out.
    pub shortened: u64,
    /// There was no room for them, no file could be written, or no collector took them.
    pub dropped: u64,
    /// Bytes that traces hold in memory.
    pub held_bytes: u64,
}

/// As [`TraceCounts`].
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) written: AtomicU64,
    pub(crate) shortened: AtomicU64,
    pub(crate) dropped: AtomicU64,
}

impl Counts {
    pub(crate) fn add(count: &AtomicU64, more: u64) {
        count.fetch_add(more, Ordering::Relaxed);
    }
}
