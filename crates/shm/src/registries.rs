//! Whose region does a name mean?
//!
//! Each owner has its own registry, so the same name of two owners means two regions. The operator's registry always exists. One limit applies to what
//! all owners have mapped together.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use crate::error::ShmError;
use crate::limits::{OWNERS_MAX, REGIONS_PER_OWNER_MAX, mapped_bytes_max, mapped_bytes_per_owner_max};
use crate::mapped_counts::{Counts, Total};
use crate::registry::{Options, Registry};
use crate::rights::UserGroups;
use crate::sync::{Mutex, Snapshot};
use crate::{Gpu, Kind};

type Owned<O> = BTreeMap<O, Arc<Registry>>;

/// The regions of all owners. `O` identifies an owner.
pub struct Registries<O> {
    options: Options,
    gpu: Option<Gpu>,
    groups: Arc<UserGroups>,
    total: Total,
    operator: Arc<Registry>,
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
        let memory = nerite_memory::allowed_bytes();
        Registries::with_groups(allow_client_shm, gpu, UserGroups::of_system(), memory)
    }

    /// As [`Registries::new`], with another user directory than the system's: `look_up` gives the groups of a user.
    pub fn with_user_directory(allow_client_shm: bool, look_up: fn(u32) -> Vec<u32>) -> Registries<O> {
        let memory = nerite_memory::allowed_bytes();
        Registries::with_groups(allow_client_shm, None, UserGroups::looked_up_by(look_up), memory)
    }

    /// For a process that may have `memory` bytes.
    fn with_groups(allow_client_shm: bool, gpu: Option<Gpu>, groups: Arc<UserGroups>, memory: u64) -> Registries<O> {
        let own_bytes_max = mapped_bytes_per_owner_max(mapped_bytes_max(memory));
        let options = Options { allow_client_shm, regions_max: REGIONS_PER_OWNER_MAX, mapped_bytes_max: own_bytes_max };
        let total = Total::new(memory);
        let operator = Registry::new(options).counted_in(&total).with_gpu(gpu.clone()).with_groups(Arc::clone(&groups));
        let (operator, none) = (Arc::new(operator), Arc::new(Registry::new(options)));
        let (owned, writers) = (Snapshot::new(Owned::new()), Mutex::default());
        Registries { options, gpu, groups, total, operator, none, owned, writers }
    }

    /// The operator's regions.
    pub fn operator(&self) -> &Registry {
        &self.operator
    }

    /// The GPU that CUDA regions are on.
    pub fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }

    /// A registry of its own for a session, with at most `regions_max` regions. The bytes of its regions count as bytes of `owner`, or as the operator's if
    /// `owner` is `None`.
    pub fn of_session(&self, owner: Option<&O>, regions_max: usize) -> Result<Registry, ShmError> {
        let owner = owner.map_or_else(|| Ok(Arc::clone(&self.operator)), |owner| self.open(owner))?;
        Ok(self.new_registry(Options { regions_max, ..self.options }).within(owner))
    }

    /// A registry without regions.
    pub fn none(&self) -> &Registry {
        &self.none
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
            // This copy and the table each hold one reference to a registry. A third reference means that a call may be about to register a region in it.
            owned.retain(|_, registry| Arc::strong_count(registry) > 2 || !registry.is_unused());
        }
        if owned.len() >= OWNERS_MAX {
            return Err(ShmError::OwnersMany { owners: owned.len() });
        }
        let registry = Arc::new(self.new_registry(self.options).counted_in(&self.total));
        owned.insert(owner.clone(), Arc::clone(&registry));
        self.owned.store(Arc::new(owned));
        Ok(registry)
    }

    /// A registry on its own, with the GPU and the user directory of these.
    fn new_registry(&self, options: Options) -> Registry {
        Registry::new(options).with_gpu(self.gpu.clone()).with_groups(Arc::clone(&self.groups))
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
        for registry in owned.values().chain([&self.operator]) {
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
    fn what_a_session_maps_counts_as_bytes_of_its_owner() {
        // An owner may map 20 times the memory, so a page of 16 KiB of memory is 80 pages of an owner's.
        let groups = UserGroups::of_system();
        let registries: Registries<u32> = Registries::with_groups(true, None, groups, 4 * 4096);
        let mine = OwnedRegion::create(&format!("/nerite-owners-{}-session", std::process::id()), 80 * 4096).unwrap();
        let sessions = [Some(&1), Some(&1), None].map(|owner| registries.of_session(owner, 2).unwrap());
        sessions[0].register_system("a", mine.key(), 0, 79 * 4096).unwrap();
        assert!(registries.of(&1).system_status(Some("a")).is_err(), "only the session has it");
        assert_eq!((registries.counts().mapped, registries.counts().mapped_bytes), (0, 79 * 4096));
        for own in [&sessions[1], &*registries.open(&1).unwrap()] {
            let refused = own.register_system("b", mine.key(), 0, 2 * 4096).unwrap_err().to_string();
            let text = "regions of 316 KiB are mapped, at most 12288 of 320 KiB may be, asked for 8 KiB more";
            assert!(refused.contains(text), "{refused}");
        }
        sessions[1].register_system("b", mine.key(), 0, 4096).unwrap();
        sessions[2].register_system("b", mine.key(), 0, 4096).unwrap();
        for session in &sessions {
            session.unregister_all_system().unwrap();
        }
        assert_eq!(registries.counts().mapped_bytes, 0);
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

    #[test]
    fn an_owner_whose_object_is_open_keeps_its_counts() {
        let registries: Registries<usize> = Registries::new(true, None);
        let permit = registries.open(&0).unwrap().mapped_counts.open().unwrap();
        for owner in 1..OWNERS_MAX + 10 {
            registries.open(&owner).unwrap();
        }
        assert_eq!(registries.of(&0).mapped_counts.objects_open(), 1);
        drop(permit);
        assert!(registries.of(&0).is_unused());
    }
}
