//! How many traces were written, and how many were lost?

use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers of traces since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceCounts {
    /// Traces that are in a file, or that a collector has.
    pub written: u64,
    /// Those of them that lack notes or bytes of tensors.
    pub shortened: u64,
    /// Traces for which there was no memory, no writable file, or no collector that accepted them.
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
