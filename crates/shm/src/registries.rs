//! Whose region does a name mean?
//!
//! Each owner has its own registry, so the same name of two owners means two regions. The operator's registry always exists. One limit applies to what
//! all owners have mapped together.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use crate::error::ShmError;
use crate::limits::{MAPPED_BYTES_PER_OWNER_MAX, OWNERS_MAX, REGIONS_PER_OWNER_MAX};
use crate::registry::{Options, Registry};
use crate::sync::{Mutex, Snapshot};
use crate::tally::{Counts, Total};
use crate::{Gpu, Kind};

type Owned<O> = BTreeMap<O, Arc<Registry>>;

/// The regions of all owners. `O` identifies an owner.
pub struct Registries<O> {
    options: Options,
    gpu: Option<Gpu>,
    total: Total,
    operator: Registry,
    /// The registry for owners without regions.
    none: Arc<Registry>,
    /// Read without a lock, replaced as a whole.
    owned: Snapshot<Owned<O>>,
    /// Held while `owned` is replaced.
    writers: Mutex<()>,
}

impl<O: Ord + Clone> Registries<O> {
    /// Empty registries. `allow_client_shm` is the operator's setting. With a GPU, CUDA regions are accepted too.
    pub fn new(allow_client_shm: bool, gpu: Option<Gpu>) -> Registries<O> {
        let (regions_max, mapped_bytes_max) = (REGIONS_PER_OWNER_MAX, MAPPED_BYTES_PER_OWNER_MAX);
        let options = Options { allow_client_shm, regions_max, mapped_bytes_max };
        let total = Total::default();
        let operator = Registry::new(options).counted_in(&total).with_gpu(gpu.clone());
        let none = Arc::new(Registry::new(options));
        let (owned, writers) = (Snapshot::new(Owned::new()), Mutex::default());
        Registries { options, gpu, total, operator, none, owned, writers }
    }

    /// The operator's regions.
    pub fn operator(&self) -> &Registry {
        &self.operator
    }

    /// The GPU that CUDA regions are on.
    pub fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }

    /// The regions of `owner`, for a lookup. Empty if it never registered any. Takes no lock.
    pub fn of(&self, owner: &O) -> Arc<Registry> {
        Arc::clone(self.owned.load().get(owner).unwrap_or(&self.none))
    }

    /// The regions of `owner`, for a registration. An error if `limits::OWNERS_MAX` others have regions.
    pub fn open(&self, owner: &O) -> Result<Arc<Registry>, ShmError> {
        if let Some(found) = self.owned.load().get(owner) {
            return Ok(Arc::clone(found));
        }
        // A panic while the lock is held leaves the table valid: each change is one swap.
        let _writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut owned = Owned::clone(&self.owned.load());
        if let Some(found) = owned.get(owner) {
            return Ok(Arc::clone(found));
        }
        if owned.len() >= OWNERS_MAX {
            // One reference is in this copy and one in the table. A third means that a call may be about to register a region.
            owned.retain(|_, registry| Arc::strong_count(registry) > 2 || !registry.is_unused());
        }
        if owned.len() >= OWNERS_MAX {
            return Err(ShmError::OwnersMany { owners: owned.len() });
        }
        let registry = Arc::new(Registry::new(self.options).counted_in(&self.total).with_gpu(self.gpu.clone()));
        owned.insert(owner.clone(), Arc::clone(&registry));
        self.owned.store(Arc::new(owned));
        Ok(registry)
    }

    /// All owners besides the operator that ever registered a region, with their regions.
    pub fn owned(&self) -> Arc<BTreeMap<O, Arc<Registry>>> {
        self.owned.load_full()
    }

    /// The numbers of all owners together, for metrics.
    pub fn counts(&self) -> Counts {
        let owned = self.owned();
        let others: u64 = owned.values().map(|registry| registry.counts().registered).sum();
        let registered = self.operator.counts().registered + others;
        let (system, cuda) = (self.total.system.counts(registered), self.total.cuda.counts(0));
        Counts { cuda_mapped: cuda.mapped, cuda_mapped_bytes: cuda.mapped_bytes, ..system }
    }

    /// The regions of all owners that were unregistered, and that requests still use.
    pub fn still_used(&self) -> u64 {
        let others: u64 = self.owned().values().map(|registry| registry.still_used()).sum();
        self.operator.still_used() + others
    }

    /// Ends the registrations of all owners.
    pub fn unregister_all(&self) -> Result<(), ShmError> {
        let owned = self.owned();
        for registry in owned.values().map(|registry| &**registry).chain([&self.operator]) {
            registry.unregister_all(Kind::System)?;
            registry.unregister_all(Kind::Cuda)?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(shuttle)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::OwnedRegion;

    fn object(name: &str) -> OwnedRegion {
        OwnedRegion::create(&format!("/nerite-owners-{}-{name}", std::process::id()), 4096).unwrap()
    }

    #[test]
    fn equal_names_of_two_owners_are_two_regions() {
        let registries: Registries<u32> = Registries::new(true, None);
        let (one, other) = (object("one"), object("other"));
        registries.open(&1).unwrap().register_system("a", one.key(), 0, 4096).unwrap();
        registries.open(&2).unwrap().register_system("a", other.key(), 0, 2048).unwrap();
        assert!(registries.operator().system_status(Some("a")).is_err());
        assert_eq!(registries.of(&1).system_status(None).unwrap()[0].byte_size, 4096);
        assert_eq!((registries.counts().registered, registries.counts().mapped_bytes), (2, 6144));
        registries.of(&1).unregister_all_system().unwrap();
        assert_eq!((registries.counts().registered, registries.counts().mapped_bytes), (1, 2048));
        registries.unregister_all().unwrap();
        assert_eq!((registries.counts().registered, registries.counts().mapped_bytes), (0, 0));
        assert!(registries.of(&3).system_status(Some("a")).is_err());
    }

    #[test]
    fn owners_without_regions_are_dropped_for_others_and_those_with_regions_are_not() {
        let registries: Registries<usize> = Registries::new(true, None);
        let mine = object("kept");
        registries.open(&0).unwrap().register_system("a", mine.key(), 0, 4096).unwrap();
        for owner in 1..OWNERS_MAX + 10 {
            registries.open(&owner).unwrap();
        }
        assert!(registries.of(&0).system_status(Some("a")).is_ok());
        for owner in 1..OWNERS_MAX {
            registries.open(&owner).unwrap().register_system("a", mine.key(), 0, 4096).unwrap();
        }
        let refused = registries.open(&(2 * OWNERS_MAX)).err().unwrap().to_string();
        assert!(refused.contains("1024"), "{refused}");
    }
}
