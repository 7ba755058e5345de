//! How much is lent to all sessions together, and which lease has a given name?

mod account;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, Weak};

use super::limits::{INDEX_SHARDS, LEASES_MAX};
use super::size_counts::{Size, SizeCounts};
use super::{Lease, LeaseName, random_bits};
use nerite_watchdog::is_polling;

use crate::deferred::{OwnerId, drop_together, drop_waiting, unmap_on_this_thread};
use crate::gpu::Gpu;
use crate::mapped_counts::{MappedCounts, Most, QuotaPermit};
use crate::sync::{Mutex, RwLock};

pub use account::{Account, BorrowedLease, LeaseState};

/// The operator's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseLimits {
    /// The most bytes of all sessions together, including idle leases: `--lease-max-bytes`.
    pub bytes_max: u64,
    /// The most bytes of one session, including idle leases: `--session-max-bytes`.
    pub session_bytes_max: u64,
}

impl Default for LeaseLimits {
    /// Half of the memory of the host or of the control group. Half of that for one session.
    fn default() -> LeaseLimits {
        let bytes_max = nerite_memory::allowed_bytes() / 2;
        LeaseLimits { bytes_max, session_bytes_max: bytes_max / 2 }
    }
}

/// The numbers of leases at one moment, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseCounts {
    /// Open sessions.
    pub sessions: u64,
    /// All leases: lent, idle, or held by a request after their session ended.
    pub leases: u64,
    /// Bytes of all leases.
    pub bytes: u64,
    /// Idle leases: returned, and available to their session again.
    pub idle: u64,
    /// Bytes of idle leases.
    pub idle_bytes: u64,
}

/// The leases of one size at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCounts {
    /// Bytes of each lease.
    pub byte_size: u64,
    /// Leases that clients have.
    pub lent: u64,
    /// Idle leases.
    pub idle: u64,
    /// All leases in any state.
    pub leases: u64,
    /// The highest number of leases at one time.
    pub peak: u64,
}

/// All memory that the server lends, to all sessions.
pub struct Pools {
    limits: LeaseLimits,
    mapped_counts: Arc<MappedCounts>,
    pub(super) counts: Arc<SizeCounts>,
    pub(super) index: Arc<Index>,
    accounts: Mutex<Vec<Weak<Account>>>,
    /// Open sessions by their keys. Requests over other protocols find the account that pays for their outputs here.
    keys: RwLock<HashMap<u128, Weak<Account>>>,
    pub(super) gpu: Option<Gpu>,
}

impl Pools {
    /// Pools without leases.
    pub fn new(limits: LeaseLimits) -> Arc<Pools> {
        Pools::with_gpu(limits, None)
    }

    /// As [`Pools::new`], on a host with a GPU. Leases may be page-locked when they are created.
    pub fn with_gpu(limits: LeaseLimits, gpu: Option<Gpu>) -> Arc<Pools> {
        let (counts, index, accounts, keys) = Default::default();
        let most = Most { regions: LEASES_MAX as u64, bytes: limits.bytes_max };
        let mapped_counts = Arc::new(MappedCounts::new(most));
        Arc::new(Pools { limits, mapped_counts, counts, index, accounts, keys, gpu })
    }

    /// The operator's settings.
    pub fn limits(&self) -> LeaseLimits {
        self.limits
    }

    /// Whether new leases may be page-locked by a GPU's driver.
    pub fn has_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    /// Opens an account for a new session.
    pub fn open(self: &Arc<Pools>) -> Arc<Account> {
        // If the kernel has no random bits, there are no names for leases either. Such a session can borrow nothing, but does no harm.
        let account = Arc::new(Account::new(Arc::clone(self), random_bits().ok()));
        if let Some(key) = account.key() {
            self.keys.write().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::downgrade(&account));
        }
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.retain(|account| account.strong_count() > 0);
        accounts.push(Arc::downgrade(&account));
        account
    }

    /// The account of the open session with this key.
    pub fn account(&self, key: u128) -> Option<Arc<Account>> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).get(&key).and_then(Weak::upgrade)
    }

    /// Removes the key of a session that ended.
    pub(super) fn remove_key(&self, key: Option<u128>) {
        if let Some(key) = key {
            self.keys.write().unwrap_or_else(PoisonError::into_inner).remove(&key);
        }
    }

    /// The lease with this name, if it is lent to a session now.
    pub fn find(&self, name: &str) -> Option<Arc<Lease>> {
        self.index.find(LeaseName::parse(name)?)
    }

    /// Returns idle leases to the system that were not used for more than `rounds_max` calls of this function. Returns the number of freed bytes. The
    /// caller is a periodic task.
    pub fn trim(&self, rounds_max: u32) -> u64 {
        drop_leases(self.open_accounts().iter().flat_map(|account| account.take_stale(rounds_max)).collect())
    }

    /// The current numbers.
    pub fn counts(&self) -> LeaseCounts {
        let accounts = self.open_accounts();
        let all = self.mapped_counts.counts(0);
        let mut counts =
            LeaseCounts { sessions: 0, leases: all.mapped, bytes: all.mapped_bytes, ..LeaseCounts::default() };
        for account in accounts.iter().filter(|account| !account.is_closed()) {
            let (idle, idle_bytes) = account.idle();
            counts.sessions += 1;
            counts.idle += idle;
            counts.idle_bytes += idle_bytes;
        }
        counts
    }

    /// The leases by size, in ascending order, and the peak of all bytes.
    pub fn classes(&self) -> (Vec<ClassCounts>, u64) {
        let mut found: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
        for account in self.open_accounts() {
            account.sizes(|size, is_lent| {
                let (lent, idle) = found.entry(size).or_default();
                *(if is_lent { lent } else { idle }) += 1;
            });
        }
        // Read after the accounts, so that a lease that is created meanwhile does not make `lent` larger than `leases`.
        let (sizes, bytes_peak) = self.counts.read();
        let class = |(byte_size, size): (usize, Size)| {
            let (lent, idle) = found.get(&byte_size).copied().unwrap_or_default();
            ClassCounts { byte_size: byte_size as u64, lent, idle, leases: size.now, peak: size.peak }
        };
        (sizes.into_iter().map(class).collect(), bytes_peak)
    }

    /// Reserves quota for one more lease of `account`. Before it refuses, it frees idle leases of as many bytes, first those of `account`.
    pub(super) fn admit(&self, bytes: u64, account: &Account) -> Option<QuotaPermit> {
        let free = || {
            let mut freed = account.free(bytes);
            for other in self.open_accounts() {
                if freed >= bytes {
                    break;
                }
                freed += other.free(bytes - freed);
            }
            freed
        };
        admit_or_free(account.owner(), || self.admit_at_once(bytes), free)
    }

    /// Reserves quota for one more lease, without freeing others.
    pub(super) fn admit_at_once(&self, bytes: u64) -> Option<QuotaPermit> {
        self.mapped_counts.admit(bytes).ok()
    }

    fn open_accounts(&self) -> Vec<Arc<Account>> {
        let accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Calls `admit` until it gives a permit. After each refusal this unmaps one mapping of `owner` that waits to be unmapped. If none waits, `free` frees idle
/// leases and returns their bytes. A thread that serves connections passes large leases on, and these count until they are unmapped, so it calls `free` only
/// once.
fn admit_or_free(
    owner: OwnerId,
    admit: impl Fn() -> Option<QuotaPermit>,
    free: impl Fn() -> u64,
) -> Option<QuotaPermit> {
    loop {
        if let Some(permit) = admit() {
            return Some(permit);
        }
        if is_polling() {
            free();
            return admit();
        }
        if !drop_waiting(owner) && unmap_on_this_thread(&free) == 0 {
            return None;
        }
    }
}

/// Drops leases that no session has any more. Returns the number of their bytes.
fn drop_leases(gone: Vec<Arc<Lease>>) -> u64 {
    let bytes = gone.iter().map(|lease| lease.byte_size() as u64).sum();
    drop_together(gone, bytes);
    bytes
}

impl std::fmt::Debug for Pools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pools({:?})", self.counts())
    }
}

/// Leases by name.
#[derive(Default)]
pub(super) struct Index {
    shards: [RwLock<HashMap<LeaseName, Weak<Lease>>>; INDEX_SHARDS],
}

impl Index {
    fn shard(&self, name: LeaseName) -> &RwLock<HashMap<LeaseName, Weak<Lease>>> {
        &self.shards[name.part(INDEX_SHARDS)]
    }

    pub(super) fn insert(&self, lease: &Arc<Lease>) {
        let mut shard = self.shard(lease.name()).write().unwrap_or_else(PoisonError::into_inner);
        shard.insert(lease.name(), Arc::downgrade(lease));
    }

    pub(super) fn remove(&self, name: LeaseName) {
        self.shard(name).write().unwrap_or_else(PoisonError::into_inner).remove(&name);
    }

    fn find(&self, name: LeaseName) -> Option<Arc<Lease>> {
        // The lock must be released before `lease` is dropped. Dropping the last reference to a lease takes the same lock.
        let lease = self.shard(name).read().unwrap_or_else(PoisonError::into_inner).get(&name).and_then(Weak::upgrade);
        lease.filter(|lease| lease.is_lent())
    }
}
