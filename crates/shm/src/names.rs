//! Which region has a given name, found without a lock?
//!
//! ```text
//!   registered (behind a mutex, only writers take it):  name ─► Arc<Region>        removed by unregister
//!   shards (snapshots, swapped whole):                  name ─► Weak<Region>       removed when found dead
//! ```
//! A region is registered while it is in both tables. If it is only in the shards and its Weak is alive, it is unregistered but in use: requests hold
//! it, and new requests may still find it. If its Weak is dead, the region is unmapped or waits to be unmapped, and the next change of its shard removes the
//! entry. So a shard never has more entries than it had live regions at its last change.
//!
//! Status reads `strong_count` and never upgrades, so that it does not keep a region mapped.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, PoisonError, Weak};

use crate::limits::SHARDS;
use crate::record::{Kind, Record};
use crate::region::Region;
use crate::sync::{Mutex, MutexGuard, Snapshot};

/// The smallest capacity to which the writers' table shrinks.
const CAPACITY_MIN: usize = 1024;

type Shard = HashMap<Arc<str>, Named>;
type Registered = HashMap<Arc<str>, Arc<Region>>;

#[derive(Clone)]
struct Named {
    record: Arc<Record>,
    region: Weak<Region>,
}

impl Named {
    fn is_alive(&self) -> bool {
        self.region.strong_count() > 0
    }
}

pub(crate) struct Names {
    hasher: RandomState,
    shards: Box<[Snapshot<Shard>]>,
    registered: Mutex<Registered>,
}

/// A region that was not inserted because its name is taken.
pub(crate) struct Taken {
    /// The region is returned so that the caller unmaps it outside the lock.
    pub(crate) region: Arc<Region>,
    /// The region that has the name.
    pub(crate) holder: Arc<Record>,
}

impl Names {
    pub(crate) fn new() -> Names {
        Names {
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| Snapshot::new(Shard::new())).collect(),
            registered: Mutex::default(),
        }
    }

    /// The region of that name, registered or still in use. Takes no lock and never waits.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Region>> {
        self.shard(name).load().get(name)?.region.upgrade()
    }

    /// The record of that name, registered or still in use.
    pub(crate) fn record(&self, name: &str) -> Option<Arc<Record>> {
        let shard = self.shard(name).load();
        shard.get(name).filter(|named| named.is_alive()).map(|named| Arc::clone(&named.record))
    }

    /// All records, registered or still in use, sorted by name. Blocks writers, so that the list is consistent.
    pub(crate) fn records(&self) -> Vec<Arc<Record>> {
        let mut records: Vec<_> = {
            let _writers = self.lock();
            let shards: Vec<_> = self.shards.iter().map(Snapshot::load_full).collect();
            let alive = shards.iter().flat_map(|shard| shard.values()).filter(|named| named.is_alive());
            alive.map(|named| Arc::clone(&named.record)).collect()
        };
        records.sort_by(|a, b| a.name.cmp(&b.name));
        records
    }

    /// Up to `count` regions whose names follow `after`, by name, and whether each is registered. Unlike status, the result keeps the regions mapped.
    pub(crate) fn page(&self, after: Option<&str>, count: usize) -> Vec<(Arc<Region>, bool)> {
        let registered = self.lock();
        let shards: Vec<_> = self.shards.iter().map(Snapshot::load_full).collect();
        let all = shards.iter().flat_map(|shard| shard.iter());
        let mut found: Vec<_> = all.filter(|(name, _)| after.is_none_or(|after| &***name > after)).collect();
        found.sort_unstable_by_key(|(name, _)| *name);
        let regions = found.into_iter().filter_map(|(name, named)| {
            let region = named.region.upgrade()?;
            let is_registered = registered.get(name).is_some_and(|held| Arc::ptr_eq(held, &region));
            Some((region, is_registered))
        });
        regions.take(count).collect()
    }

    /// The number of unregistered regions that requests still use. Regions that only wait to be unmapped do not count.
    pub(crate) fn still_used(&self) -> usize {
        let registered = self.lock();
        let shards: Vec<_> = self.shards.iter().map(Snapshot::load_full).collect();
        let alive = shards.iter().flat_map(|shard| shard.values()).filter(|named| named.is_alive()).count();
        alive.saturating_sub(registered.len())
    }

    /// The region of that name, and whether it is registered.
    pub(crate) fn held(&self, name: &str) -> Option<(Arc<Region>, bool)> {
        let registered = self.lock();
        let region = self.find(name)?;
        let is_registered = registered.get(name).is_some_and(|held| Arc::ptr_eq(held, &region));
        Some((region, is_registered))
    }

    /// The record of the region registered under that name. `None` if the region was unregistered and is only still in use, or if it is lost.
    pub(crate) fn holder(&self, name: &str) -> Option<Arc<Record>> {
        self.lock().get(name).filter(|region| !region.is_lost()).map(|region| Arc::clone(region.record()))
    }

    /// Registers the region under its name. It replaces a region of that name that is lost, or unregistered and only still in use.
    pub(crate) fn insert(&self, region: Region) -> Result<(), Taken> {
        let region = Arc::new(region);
        let name = Arc::clone(&region.record().name);
        let mut registered = self.lock();
        if let Some(held) = registered.get(&name).filter(|held| !held.is_lost()) {
            let holder = Arc::clone(held.record());
            drop(registered);
            return Err(Taken { region, holder });
        }
        let named = Named { record: Arc::clone(region.record()), region: Arc::downgrade(&region) };
        let replaced = registered.insert(Arc::clone(&name), region);
        rewrite(&registered, self.shard(&name), Some((name, named)));
        drop(registered);
        // The region is dropped outside the lock, because this may unmap it.
        drop(replaced);
        Ok(())
    }

    /// Ends the registration under that name, if it is of that kind. The region is unmapped now or after its last use.
    pub(crate) fn remove(&self, name: &str, kind: Kind) {
        let removed = {
            let mut registered = self.lock();
            match registered.get(name) {
                Some(region) if region.record().kind() == kind => {
                    let removed = registered.remove(name);
                    shrink(&mut registered);
                    removed
                }
                _ => return,
            }
        };
        // The region is dropped outside the lock, because this may unmap it.
        drop(removed);
        rewrite(&self.lock(), self.shard(name), None);
    }

    /// Ends all registrations of that kind.
    pub(crate) fn remove_all(&self, kind: Kind) {
        let removed: Vec<_> = self.lock().extract_if(|_, region| region.record().kind() == kind).collect();
        drop(removed);
        let mut writers = self.lock();
        shrink(&mut writers);
        for shard in &self.shards {
            rewrite(&writers, shard, None);
        }
    }

    /// Regions registered now.
    pub(crate) fn registered(&self) -> usize {
        self.lock().len()
    }

    /// Entries of the fullest shard, including dead ones. A change copies at most as many entries, and a lookup searches at most as many.
    #[cfg(test)]
    pub(crate) fn fullest(&self) -> usize {
        self.shards.iter().map(|shard| shard.load().len()).max().unwrap_or(0)
    }

    fn shard(&self, name: &str) -> &Snapshot<Shard> {
        let at = self.hasher.hash_one(name) as usize % SHARDS;
        &self.shards[at]
    }

    fn lock(&self) -> MutexGuard<'_, Registered> {
        // A panic while the lock is held leaves both tables valid: each change is one insert, one remove or one swap.
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shrinks the table after a burst of registrations. It shrinks no more often than it grew, so the amortised cost is zero.
fn shrink(registered: &mut Registered) {
    if registered.capacity() > CAPACITY_MIN && registered.len() < registered.capacity() / 8 {
        registered.shrink_to(2 * registered.len());
    }
}

/// Replaces a shard by one without its dead entries and with `added`. The holder of the lock is the only writer, so no change is lost between load and store.
fn rewrite(_writers: &MutexGuard<'_, Registered>, shard: &Snapshot<Shard>, added: Option<(Arc<str>, Named)>) {
    let old = shard.load();
    if added.is_none() && old.values().all(Named::is_alive) {
        return;
    }
    let alive = old.iter().filter(|(_, named)| named.is_alive());
    let mut new: Shard = alive.map(|(name, named)| (Arc::clone(name), named.clone())).collect();
    new.extend(added);
    shard.store(Arc::new(new));
}
