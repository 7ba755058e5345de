//! How many regions are mapped, how many bytes, how many were refused?

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::deferred::OwnerId;
use crate::limits::{
    MAPPED_BYTES_MAX, OBJECTS_OPEN_MAX, REGIONS_FEW, REGIONS_MAX, REGIONS_RESERVED, mapped_bytes_few, mapped_bytes_max,
    mapped_bytes_reserved,
};
use crate::sync::AtomicU64;

/// The registry's numbers at one moment, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Regions registered.
    pub registered: u64,
    /// System regions mapped: registered ones, and unregistered ones that requests still use or that wait to be unmapped.
    pub mapped: u64,
    /// Bytes of address space of these regions, and of the regions of the owner's sessions. Bytes that a model's process maps too are counted once more.
    pub mapped_bytes: u64,
    /// CUDA regions that are open: registered ones, and unregistered ones that are still in use.
    pub cuda_mapped: u64,
    /// Bytes of device memory of the open CUDA regions.
    pub cuda_mapped_bytes: u64,
    /// Registrations refused since the start.
    pub refused: u64,
}

/// The most that may be mapped at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Most {
    pub(crate) regions: u64,
    pub(crate) bytes: u64,
}

pub(crate) struct MappedCounts {
    mapped: AtomicU64,
    mapped_bytes: AtomicU64,
    refused: AtomicU64,
    /// Objects that are open to be registered, or that wait to be closed.
    open: AtomicU64,
    most: Most,
    parent: Option<Parent>,
}

/// Larger counts of which these counts are a part.
struct Parent {
    counts: Arc<MappedCounts>,
    /// Whether regions count in the larger counts. Bytes always do.
    counts_regions: bool,
}

/// Counts of what all owners of regions have mapped together.
pub(crate) struct Total {
    pub(crate) system: Arc<MappedCounts>,
    pub(crate) cuda: Arc<MappedCounts>,
}

/// The right to one mapping of a number of bytes. Dropping it returns the right. A Region drops it after the memory was unmapped.
pub(crate) struct QuotaPermit {
    mapped_counts: Arc<MappedCounts>,
    regions: u64,
    byte_size: u64,
}

/// The right to have one object open. Dropping it returns the right.
pub(crate) struct OpenPermit(Arc<MappedCounts>);

/// The counts that would exceed what may be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    /// Whether the full counts are the counts of all owners together.
    pub(crate) of_all: bool,
    pub(crate) regions: u64,
    pub(crate) bytes: u64,
    pub(crate) most: Most,
}

impl Total {
    /// The counts of all owners, in a process that may have `memory` bytes. Device memory needs no page tables in this process, so `memory` does not limit
    /// it.
    pub(crate) fn new(memory: u64) -> Total {
        let counts = |bytes| Arc::new(MappedCounts::new(Most { regions: REGIONS_MAX as u64, bytes }));
        Total { system: counts(mapped_bytes_max(memory)), cuda: counts(MAPPED_BYTES_MAX) }
    }
}

impl MappedCounts {
    pub(crate) fn new(most: Most) -> MappedCounts {
        let (mapped, mapped_bytes, refused, open) = Default::default();
        MappedCounts { mapped, mapped_bytes, refused, open, most, parent: None }
    }

    /// Counts whose regions also count in `parent`. An owner's counts are such a part of the counts of all owners.
    pub(crate) fn within(parent: &Arc<MappedCounts>, most: Most) -> Arc<MappedCounts> {
        let parent = Some(Parent { counts: Arc::clone(parent), counts_regions: true });
        Arc::new(MappedCounts { parent, ..MappedCounts::new(most) })
    }

    /// Counts whose bytes also count in `parent`. A session's counts are such a part of its owner's counts.
    pub(crate) fn bytes_within(parent: &Arc<MappedCounts>, most: Most) -> Arc<MappedCounts> {
        let parent = Some(Parent { counts: Arc::clone(parent), counts_regions: false });
        Arc::new(MappedCounts { parent, ..MappedCounts::new(most) })
    }

    /// A permit for one region. Err: the limit of these counts, or of the larger counts, would be exceeded.
    pub(crate) fn admit(self: &Arc<MappedCounts>, byte_size: u64) -> Result<QuotaPermit, Full> {
        self.permit(1, byte_size)
    }

    /// A permit to open one object. `None` if the owner has [`OBJECTS_OPEN_MAX`] objects open.
    pub(crate) fn open(self: &Arc<MappedCounts>) -> Option<OpenPermit> {
        let counts = self.of_owner();
        add(&counts.open, 1, OBJECTS_OPEN_MAX as u64).then(|| OpenPermit(Arc::clone(counts)))
    }

    /// The objects of the owner that are open to be registered, or wait to be closed.
    pub(crate) fn objects_open(&self) -> u64 {
        self.open.load(Ordering::Acquire)
    }

    /// Identifies the owner whose counts these are.
    pub(crate) fn owner(self: &Arc<MappedCounts>) -> OwnerId {
        Arc::as_ptr(self.of_owner()).addr()
    }

    /// The counts of the owner: these, or the ones that contain these if these are of one of the owner's sessions.
    fn of_owner(self: &Arc<MappedCounts>) -> &Arc<MappedCounts> {
        match &self.parent {
            Some(Parent { counts, counts_regions: false }) => counts.of_owner(),
            _ => self,
        }
    }

    fn permit(self: &Arc<MappedCounts>, regions: u64, byte_size: u64) -> Result<QuotaPermit, Full> {
        self.take(regions, byte_size, self.most)?;
        Ok(QuotaPermit { mapped_counts: Arc::clone(self), regions, byte_size })
    }

    /// Adds to these counts, up to `most`, and to the larger counts.
    fn take(&self, regions: u64, byte_size: u64, most: Most) -> Result<(), Full> {
        if !add(&self.mapped, regions, most.regions) {
            return Err(self.full(most));
        }
        if !add(&self.mapped_bytes, byte_size, most.bytes) {
            self.mapped.fetch_sub(regions, Ordering::AcqRel);
            return Err(self.full(most));
        }
        let Some(parent) = &self.parent else { return Ok(()) };
        let taken = parent.counts.take(parent.regions(regions), byte_size, parent.counts.most_for(self));
        taken.map_err(|full| {
            self.give_back_here(regions, byte_size);
            Full { of_all: full.of_all || parent.counts.parent.is_none(), ..full }
        })
    }

    fn give_back(&self, regions: u64, byte_size: u64) {
        self.give_back_here(regions, byte_size);
        if let Some(parent) = &self.parent {
            parent.counts.give_back(parent.regions(regions), byte_size);
        }
    }

    fn give_back_here(&self, regions: u64, byte_size: u64) {
        self.mapped_bytes.fetch_sub(byte_size, Ordering::AcqRel);
        self.mapped.fetch_sub(regions, Ordering::AcqRel);
    }

    /// The limit for these counts when `part` wants to map more. In the counts of all owners, the last regions and bytes are reserved for owners with few
    /// regions.
    fn most_for(&self, part: &MappedCounts) -> Most {
        let Most { regions, bytes } = self.most;
        if self.parent.is_some() {
            return self.most;
        }
        let own = part.counts(0);
        let is_few = own.mapped <= REGIONS_FEW as u64;
        let is_small = own.mapped_bytes <= mapped_bytes_few(bytes);
        Most {
            regions: if is_few { regions } else { regions.saturating_sub(REGIONS_RESERVED as u64) },
            bytes: if is_small { bytes } else { bytes - mapped_bytes_reserved(bytes) },
        }
    }

    fn full(&self, most: Most) -> Full {
        let Counts { mapped, mapped_bytes, .. } = self.counts(0);
        Full { of_all: false, regions: mapped, bytes: mapped_bytes, most }
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.counts.count_refused();
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

impl Parent {
    /// How many of `regions` regions count in the larger counts.
    fn regions(&self, regions: u64) -> u64 {
        if self.counts_regions { regions } else { 0 }
    }
}

/// Adds `more` to `to` unless the sum would exceed `max` or wrap.
fn add(to: &AtomicU64, more: u64, max: u64) -> bool {
    if more == 0 {
        return true;
    }
    to.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| now.checked_add(more).filter(|&sum| sum <= max)).is_ok()
}

impl QuotaPermit {
    /// Identifies the owner who pays.
    pub(crate) fn owner(&self) -> OwnerId {
        self.mapped_counts.owner()
    }

    /// The counts of the owner who pays.
    pub(crate) fn account(&self) -> Arc<MappedCounts> {
        Arc::clone(self.mapped_counts.of_owner())
    }

    /// A permit to map the same bytes once more. It does not count as another region.
    pub(crate) fn once_more(&self) -> Result<QuotaPermit, Full> {
        self.mapped_counts.permit(0, self.byte_size)
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        self.mapped_counts.give_back(self.regions, self.byte_size);
    }
}

impl OpenPermit {
    /// Identifies the owner of the object's client.
    pub(crate) fn owner(&self) -> OwnerId {
        self.0.owner()
    }
}

impl Drop for OpenPermit {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::limits::{REGIONS_PER_OWNER_MAX, mapped_bytes_per_owner_max};

    const NO_LIMIT: Most = Most { regions: u64::MAX, bytes: u64::MAX };

    fn mapped(counts: &MappedCounts) -> (u64, u64) {
        (counts.counts(0).mapped, counts.counts(0).mapped_bytes)
    }

    #[test]
    fn a_permit_is_refused_beyond_either_limit_and_returned_when_dropped() {
        let most = Most { regions: 2, bytes: 100 };
        let mapped_counts = Arc::new(MappedCounts::new(most));
        let first = mapped_counts.admit(60).unwrap();
        let refused = mapped_counts.admit(41).err();
        assert_eq!(refused, Some(Full { of_all: false, regions: 1, bytes: 60, most }));
        assert!(mapped_counts.admit(u64::MAX).is_err());
        let second = mapped_counts.admit(40).unwrap();
        assert!(mapped_counts.admit(0).is_err());
        assert_eq!(mapped(&mapped_counts), (2, 100));
        drop((first, second));
        assert_eq!(mapped(&mapped_counts), (0, 0));
    }

    #[test]
    fn an_owner_has_as_many_objects_open_as_it_may_with_its_sessions() {
        let total = Total::new(u64::MAX).system;
        let [owner, other] = [(); 2].map(|()| MappedCounts::within(&total, NO_LIMIT));
        let session = MappedCounts::bytes_within(&owner, NO_LIMIT);
        let permits: Vec<_> = (0..OBJECTS_OPEN_MAX).filter_map(|n| [&owner, &session][n % 2].open()).collect();
        assert_eq!(permits.len(), OBJECTS_OPEN_MAX);
        assert!(owner.open().is_none() && session.open().is_none() && other.open().is_some());
        assert!(permits.iter().all(|permit| permit.owner() == owner.owner()) && other.owner() != owner.owner());
        assert_eq!(session.admit(1).unwrap().owner(), owner.owner());
        drop(permits);
        assert!(session.open().is_some());
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of regions take Miri minutes, and nothing here is unsafe")]
    fn the_last_regions_are_reserved_for_owners_with_few() {
        let total = Total::new(u64::MAX).system;
        let most = Most { regions: REGIONS_PER_OWNER_MAX as u64, bytes: u64::MAX };
        let owners = [(); 3].map(|()| MappedCounts::within(&total, most));
        let all =
            |owner: &Arc<MappedCounts>| -> Vec<QuotaPermit> { std::iter::from_fn(|| owner.admit(1).ok()).collect() };
        let permits: Vec<_> = owners.iter().map(all).collect();
        let each: Vec<_> = permits.iter().map(Vec::len).collect();
        assert_eq!(each, [REGIONS_PER_OWNER_MAX, REGIONS_PER_OWNER_MAX, REGIONS_FEW]);
        assert_eq!(total.counts(0).mapped, (2 * REGIONS_PER_OWNER_MAX + REGIONS_FEW) as u64);
        drop(permits);
        assert_eq!(mapped(&total), (0, 0));
    }

    /// 24 GiB of memory: the page tables of all regions take 1.5 GiB at the most, and those of one owner 960 MiB.
    #[test]
    fn page_tables_of_regions_take_a_sixteenth_of_the_memory_and_leave_room_for_owners_with_little() {
        const MEMORY: u64 = 24 << 30;
        let all = mapped_bytes_max(MEMORY);
        assert_eq!(all / 512, MEMORY / 16);
        let most = Most { bytes: mapped_bytes_per_owner_max(all), ..NO_LIMIT };
        assert_eq!(most.bytes / 512, 960 << 20);
        let total = Total::new(MEMORY).system;
        let [one, second, little] = [(); 3].map(|()| MappedCounts::within(&total, most));
        let honest = one.admit(64 << 30).unwrap();
        assert!(one.admit(most.bytes).is_err());
        let rest = one.admit(most.bytes - (64 << 30)).unwrap();
        let left = all - mapped_bytes_reserved(all) - most.bytes;
        let refused = second.admit(left + 1).err().unwrap();
        assert_eq!((refused.of_all, refused.bytes), (true, most.bytes));
        assert_eq!(mapped(&second), (0, 0), "what is refused for all is returned to the owner");
        let second_of = second.admit(left).unwrap();
        assert!(little.admit((MEMORY / 2) + 1).is_err());
        let little_of = little.admit(MEMORY / 2).unwrap();
        drop((honest, rest, second_of, little_of));
        assert_eq!(mapped(&total), (0, 0));
    }

    #[test]
    fn what_a_session_or_a_process_maps_counts_as_bytes_of_the_owner() {
        let total = Arc::new(MappedCounts::new(NO_LIMIT));
        let owner = MappedCounts::within(&total, Most { regions: 1, bytes: 100 });
        let own = owner.admit(10).unwrap();
        let session = MappedCounts::bytes_within(&owner, Most { regions: 2, bytes: 100 });
        let in_session = session.admit(40).unwrap();
        let in_process = in_session.once_more().unwrap();
        assert_eq!((mapped(&session), mapped(&owner), mapped(&total)), ((1, 80), (1, 90), (1, 90)));
        let refused = in_session.once_more().err().unwrap();
        assert_eq!((refused.of_all, refused.bytes, refused.most.bytes), (false, 80, 100), "of the session");
        let refused = session.admit(11).err().unwrap();
        assert_eq!((refused.of_all, refused.bytes, refused.most.bytes), (false, 90, 100), "of the owner");
        assert_eq!(mapped(&session), (1, 80));
        drop((own, in_session, in_process));
        assert_eq!((mapped(&session), mapped(&owner), mapped(&total)), ((0, 0), (0, 0), (0, 0)));
    }
}
