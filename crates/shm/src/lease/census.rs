//! How many leases of each size are there, and how many were there at the most?

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use crate::sync::{Mutex, MutexGuard};

/// Leases by size. Asked only where one is made or ends, never where one is lent again.
#[derive(Default)]
pub(super) struct Census(Mutex<Numbers>);

#[derive(Default)]
struct Numbers {
    /// As many entries as there are sizes, which is few: those that are empty again stay for their peak.
    sizes: BTreeMap<usize, Size>,
    bytes: u64,
    bytes_peak: u64,
}

/// The leases of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) now: u64,
    pub(super) peak: u64,
}

/// One lease that is counted, until this is dropped.
pub(super) struct Counted {
    census: Arc<Census>,
    byte_size: usize,
}

impl Census {
    /// Counts one more.
    pub(super) fn count(self: &Arc<Census>, byte_size: usize) -> Counted {
        let mut numbers = self.lock();
        let size = numbers.sizes.entry(byte_size).or_default();
        size.now += 1;
        size.peak = size.peak.max(size.now);
        numbers.bytes += byte_size as u64;
        numbers.bytes_peak = numbers.bytes_peak.max(numbers.bytes);
        Counted { census: Arc::clone(self), byte_size }
    }

    /// Each size, and the most bytes there were.
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
        let mut numbers = self.census.lock();
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
    fn peaks_stay_when_leases_go() {
        let census = Arc::new(Census::default());
        let (a, b) = (census.count(8), census.count(8));
        drop(a);
        let c = census.count(4);
        let (sizes, bytes_peak) = census.read();
        assert_eq!(sizes, BTreeMap::from([(4, Size { now: 1, peak: 1 }), (8, Size { now: 1, peak: 2 })]));
        assert_eq!(bytes_peak, 16);
        drop((b, c));
        let (sizes, bytes_peak) = census.read();
        assert_eq!(sizes, BTreeMap::from([(4, Size { now: 0, peak: 1 }), (8, Size { now: 0, peak: 2 })]));
        assert_eq!(bytes_peak, 16);
    }
}
