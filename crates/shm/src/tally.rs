//! How many regions are mapped, how many bytes, how many were refused?

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::sync::AtomicU64;

/// The registry's numbers at one moment, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Regions registered.
    pub registered: u64,
    /// System regions mapped: registered ones and those that requests still hold after they were unregistered.
    pub mapped: u64,
    /// Bytes of address space those cover.
    pub mapped_bytes: u64,
    /// CUDA regions open, likewise.
    pub cuda_mapped: u64,
    /// Bytes of device memory those cover.
    pub cuda_mapped_bytes: u64,
    /// Registrations refused since the start.
    pub refused: u64,
}

#[derive(Default)]
pub(crate) struct Tally {
    mapped: AtomicU64,
    mapped_bytes: AtomicU64,
    refused: AtomicU64,
}

/// The right to one mapping of so many bytes. Given back when dropped, which a Region does after it has unmapped.
pub(crate) struct Ticket {
    tally: Arc<Tally>,
    byte_size: u64,
}

impl Tally {
    /// A ticket, unless `regions_max` regions or `bytes_max` bytes would be exceeded.
    pub(crate) fn admit(self: &Arc<Tally>, byte_size: u64, regions_max: u64, bytes_max: u64) -> Option<Ticket> {
        take(&self.mapped, 1, regions_max).then_some(())?;
        if !take(&self.mapped_bytes, byte_size, bytes_max) {
            self.mapped.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        Some(Ticket { tally: Arc::clone(self), byte_size })
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self, registered: u64) -> Counts {
        Counts {
            registered,
            mapped: self.mapped.load(Ordering::Acquire),
            mapped_bytes: self.mapped_bytes.load(Ordering::Acquire),
            cuda_mapped: 0,
            cuda_mapped_bytes: 0,
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// Adds `more` to `to` unless the sum would exceed `max` or wrap.
fn take(to: &AtomicU64, more: u64, max: u64) -> bool {
    to.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| now.checked_add(more).filter(|&sum| sum <= max)).is_ok()
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.tally.mapped_bytes.fetch_sub(self.byte_size, Ordering::AcqRel);
        self.tally.mapped.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_refused_past_either_bound_and_gives_back_what_it_took() {
        let tally = Arc::new(Tally::default());
        let first = tally.admit(60, 2, 100);
        assert!(first.is_some());
        assert!(tally.admit(41, 2, 100).is_none());
        assert!(tally.admit(u64::MAX, 2, u64::MAX).is_none());
        let second = tally.admit(40, 2, 100);
        assert!(tally.admit(0, 2, 100).is_none());
        assert_eq!((tally.counts(0).mapped, tally.counts(0).mapped_bytes), (2, 100));
        drop((first, second));
        assert_eq!((tally.counts(0).mapped, tally.counts(0).mapped_bytes), (0, 0));
    }
}
