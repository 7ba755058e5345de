//! How many regions are mapped, how many bytes, how many were refused?

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::deferred::OwnerId;
use crate::limits::{
    MAPPED_BYTES_FEW, MAPPED_BYTES_MAX, MAPPED_BYTES_RESERVED, REGIONS_FEW, REGIONS_MAX, REGIONS_RESERVED,
};
use crate::sync::AtomicU64;

/// The registry's numbers at one moment, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Regions registered.
    pub registered: u64,
    /// System regions mapped: registered ones, and unregistered ones that requests still use or that wait to be unmapped.
    pub mapped: u64,
    /// Bytes of address space of those.
    pub mapped_bytes: u64,
    /// CUDA regions open, likewise.
    pub cuda_mapped: u64,
    /// Bytes of device memory of those.
    pub cuda_mapped_bytes: u64,
    /// Registrations refused since the start.
    pub refused: u64,
}

#[derive(Default)]
pub(crate) struct Tally {
    mapped: AtomicU64,
    mapped_bytes: AtomicU64,
    refused: AtomicU64,
    /// The sum of these counts and others.
    total: Option<Arc<Tally>>,
}

/// What all owners of regions have mapped together.
#[derive(Default)]
pub(crate) struct Total {
    pub(crate) system: Arc<Tally>,
    pub(crate) cuda: Arc<Tally>,
}

/// The right to one mapping of a number of bytes. It is returned when dropped. A Region drops it after it has unmapped.
pub(crate) struct QuotaPermit {
    tally: Arc<Tally>,
    byte_size: u64,
}

impl Tally {
    /// The tally of one owner, whose regions also count in `total`.
    pub(crate) fn within(total: &Arc<Tally>) -> Arc<Tally> {
        Arc::new(Tally { total: Some(Arc::clone(total)), ..Tally::default() })
    }

    /// A permit, unless it would exceed `regions_max`, `bytes_max`, or the limits of all owners together.
    pub(crate) fn admit(self: &Arc<Tally>, byte_size: u64, regions_max: u64, bytes_max: u64) -> Option<QuotaPermit> {
        self.take(byte_size, regions_max, bytes_max).then_some(())?;
        if let Some(total) = &self.total {
            let (regions_max, bytes_max) = shared_bounds(self.counts(0));
            if !total.take(byte_size, regions_max, bytes_max) {
                self.give_back(byte_size);
                return None;
            }
        }
        Some(QuotaPermit { tally: Arc::clone(self), byte_size })
    }

    /// Identifies the owner whose tally this is.
    pub(crate) fn owner(self: &Arc<Tally>) -> OwnerId {
        Arc::as_ptr(self).addr()
    }

    fn take(&self, byte_size: u64, regions_max: u64, bytes_max: u64) -> bool {
        if !take(&self.mapped, 1, regions_max) {
            return false;
        }
        let taken = take(&self.mapped_bytes, byte_size, bytes_max);
        if !taken {
            self.mapped.fetch_sub(1, Ordering::AcqRel);
        }
        taken
    }

    fn give_back(&self, byte_size: u64) {
        self.mapped_bytes.fetch_sub(byte_size, Ordering::AcqRel);
        self.mapped.fetch_sub(1, Ordering::AcqRel);
    }

    /// The counts of all owners together, if there are others.
    pub(crate) fn total(&self) -> Option<Counts> {
        self.total.as_ref().map(|total| total.counts(0))
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(total) = &self.total {
            total.count_refused();
        }
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

/// The limits of all owners together for a registration of an owner that then has `own`. The last regions and bytes are reserved for owners with few.
fn shared_bounds(own: Counts) -> (u64, u64) {
    let few = own.mapped <= REGIONS_FEW as u64;
    let regions_max = if few { REGIONS_MAX } else { REGIONS_MAX - REGIONS_RESERVED } as u64;
    let small = own.mapped_bytes <= MAPPED_BYTES_FEW;
    let bytes_max = if small { MAPPED_BYTES_MAX } else { MAPPED_BYTES_MAX - MAPPED_BYTES_RESERVED };
    (regions_max, bytes_max)
}

/// Adds `more` to `to` unless the sum would exceed `max` or wrap.
fn take(to: &AtomicU64, more: u64, max: u64) -> bool {
    to.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| now.checked_add(more).filter(|&sum| sum <= max)).is_ok()
}

impl QuotaPermit {
    /// Identifies the owner who pays.
    pub(crate) fn owner(&self) -> OwnerId {
        self.tally.owner()
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        self.tally.give_back(self.byte_size);
        if let Some(total) = &self.tally.total {
            total.give_back(self.byte_size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::REGIONS_PER_OWNER_MAX;

    #[test]
    fn a_permit_is_refused_beyond_either_limit_and_returned_when_dropped() {
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
    #[test]
    #[cfg_attr(miri, ignore = "thousands of regions take Miri minutes, and nothing here is unsafe")]
    fn the_last_regions_are_reserved_for_owners_with_few() {
        let total = Arc::default();
        let owners = [Tally::within(&total), Tally::within(&total), Tally::within(&total)];
        let all = |owner: &Arc<Tally>| -> Vec<QuotaPermit> {
            std::iter::from_fn(|| owner.admit(1, REGIONS_PER_OWNER_MAX as u64, u64::MAX)).collect()
        };
        let permits: Vec<_> = owners.iter().map(all).collect();
        let each: Vec<_> = permits.iter().map(Vec::len).collect();
        assert_eq!(each, [REGIONS_PER_OWNER_MAX, REGIONS_PER_OWNER_MAX, REGIONS_FEW]);
        assert_eq!(total.counts(0).mapped, (2 * REGIONS_PER_OWNER_MAX + REGIONS_FEW) as u64);
        drop(permits);
        assert_eq!((total.counts(0).mapped, total.counts(0).mapped_bytes), (0, 0));
    }

    #[test]
    fn a_permit_refused_by_the_common_limit_is_returned_to_the_owner() {
        let total = Arc::default();
        let (one, other) = (Tally::within(&total), Tally::within(&total));
        let large = one.admit(MAPPED_BYTES_MAX - MAPPED_BYTES_RESERVED, 9, u64::MAX);
        assert!(large.is_some());
        assert!(other.admit(MAPPED_BYTES_FEW + 1, 9, u64::MAX).is_none());
        assert_eq!((other.counts(0).mapped, other.counts(0).mapped_bytes), (0, 0));
        assert!(other.admit(MAPPED_BYTES_FEW, 9, u64::MAX).is_some());
    }
}
