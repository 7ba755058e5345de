//! How many leases of each size exist, and what was the maximum?

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use crate::sync::{Mutex, MutexGuard};

/// Counts of leases by size. Changed only when a lease is created or destroyed, not when it is lent again.
#[derive(Default)]
pub(super) struct SizeCounts(Mutex<Numbers>);

#[derive(Default)]
struct Numbers {
    /// One entry per size. Sizes are few, so an entry without leases is kept for its peak.
    sizes: BTreeMap<usize, Size>,
    bytes: u64,
    bytes_peak: u64,
}

/// The counts of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) now: u64,
    pub(super) peak: u64,
}

/// One counted lease. Dropping this value uncounts it.
pub(super) struct Counted {
    counts: Arc<SizeCounts>,
    byte_size: usize,
}

impl SizeCounts {
    /// Counts one more lease.
    pub(super) fn count(self: &Arc<SizeCounts>, byte_size: usize) -> Counted {
        let mut numbers = self.lock();
        let size = numbers.sizes.entry(byte_size).or_default();
        size.now += 1;
        size.peak = size.peak.max(size.now);
        numbers.bytes += byte_size as u64;
        numbers.bytes_peak = numbers.bytes_peak.max(numbers.bytes);
        Counted { counts: Arc::clone(self), byte_size }
    }

    /// The counts of each size, and the peak of all bytes.
    pub(super) fn read(&self) -> (BTreeMap<usize, Size>, u64) {
        let numbers = self.lock();
        (numbers.sizes.clone(), numbers.bytes_peak)
    }

    fn lock(&self) -> MutexGuard<'_, Numbers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut numbers = self.counts.lock();
        numbers.bytes -= self.byte_size as u64;
        if let Some(size) = numbers.sizes.get_mut(&self.byte_size) {
            size.now -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_are_kept_when_leases_are_dropped() {
        let counts = Arc::new(SizeCounts::default());
        let (a, b) = (counts.count(8), counts.count(8));
        drop(a);
        let c = counts.count(4);
        let (sizes, bytes_peak) = counts.read();
        assert_eq!(sizes, BTreeMap::from([(4, Size { now: 1, peak: 1 }), (8, Size { now: 1, peak: 2 })]));
        assert_eq!(bytes_peak, 16);
        drop((b, c));
        let (sizes, bytes_peak) = counts.read();
        assert_eq!(sizes, BTreeMap::from([(4, Size { now: 0, peak: 1 }), (8, Size { now: 0, peak: 2 })]));
        assert_eq!(bytes_peak, 16);
    }
}
