//! How much is lent to everybody, and which lease does a name mean?

mod account;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, Weak};

use super::census::{Census, Size};
use super::limits::{INDEX_SHARDS, LEASES_MAX};
use super::{Lease, LeaseName, random_bits};
use crate::gpu::Gpu;
use crate::sync::{Mutex, RwLock};
use crate::tally::{QuotaPermit, Tally};

pub use account::{Account, BorrowedLease, LeaseState};

/// What the operator decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseLimits {
    /// Bytes of all sessions together, idle leases included: `--lease-max-bytes`.
    pub bytes_max: u64,
    /// Bytes of one session, idle leases included: `--session-max-bytes`.
    pub session_bytes_max: u64,
}

impl Default for LeaseLimits {
    /// Half of the memory of the host or of the control group, and half of that for one session.
    fn default() -> LeaseLimits {
        let bytes_max = nerite_memory::allowed_bytes() / 2;
        LeaseLimits { bytes_max, session_bytes_max: bytes_max / 2 }
    }
}

/// The leases' numbers at one moment, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseCounts {
    /// Sessions that are open.
    pub sessions: u64,
    /// Leases there are: lent, idle, or held by a request after their session ended.
    pub leases: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Leases that came back and wait for their session to want them again.
    pub idle: u64,
    /// Bytes of those.
    pub idle_bytes: u64,
}

/// The leases of one size at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCounts {
    /// Bytes of each.
    pub byte_size: u64,
    /// Those that clients have.
    pub lent: u64,
    /// Those that came back and wait for their session to want them again.
    pub idle: u64,
    /// Those there are, in whatever state.
    pub leases: u64,
    /// The most there were at one time.
    pub peak: u64,
}

/// All memory that the server lends, whoever has it.
pub struct Pools {
    limits: LeaseLimits,
    tally: Arc<Tally>,
    pub(super) census: Arc<Census>,
    pub(super) index: Arc<Index>,
    accounts: Mutex<Vec<Weak<Account>>>,
    /// Open sessions by their keys: requests over other protocols find the account that pays for their outputs.
    keys: RwLock<HashMap<u128, Weak<Account>>>,
    pub(super) gpu: Option<Gpu>,
}

impl Pools {
    /// Pools with nothing in them.
    pub fn new(limits: LeaseLimits) -> Arc<Pools> {
        Pools::with_gpu(limits, None)
    }

    /// As [`Pools::new`], on a host with a GPU: leases may be page-locked when they are made.
    pub fn with_gpu(limits: LeaseLimits, gpu: Option<Gpu>) -> Arc<Pools> {
        let (tally, census, index, accounts, keys) = Default::default();
        Arc::new(Pools { limits, tally, census, index, accounts, keys, gpu })
    }

    /// What the operator decided.
    pub fn limits(&self) -> LeaseLimits {
        self.limits
    }

    /// An account for a new session.
    pub fn open(self: &Arc<Pools>) -> Arc<Account> {
        // Without randomness there would be no names for leases either: such a session is of little use, but does no harm.
        let account = Arc::new(Account::new(Arc::clone(self), random_bits().ok()));
        if let Some(key) = account.key() {
            self.keys.write().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::downgrade(&account));
        }
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.retain(|account| account.strong_count() > 0);
        accounts.push(Arc::downgrade(&account));
        account
    }

    /// The account of the open session of that key.
    pub fn account(&self, key: u128) -> Option<Arc<Account>> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).get(&key).and_then(Weak::upgrade)
    }

    /// That session is over.
    pub(super) fn strike(&self, key: Option<u128>) {
        if let Some(key) = key {
            self.keys.write().unwrap_or_else(PoisonError::into_inner).remove(&key);
        }
    }

    /// The lease of that name, if some session has it now.
    pub fn find(&self, name: &str) -> Option<Arc<Lease>> {
        self.index.find(LeaseName::parse(name)?)
    }

    /// Gives idle leases back to the system that lay unused through `rounds_max` calls of this function. Returns the bytes
    /// freed. Somebody with a clock calls it.
    pub fn trim(&self, rounds_max: u32) -> u64 {
        self.open_accounts().iter().map(|account| account.trim(rounds_max)).sum()
    }

    /// The numbers now.
    pub fn counts(&self) -> LeaseCounts {
        let accounts = self.open_accounts();
        let all = self.tally.counts(0);
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

    /// The leases by size, ascending, and the most bytes there were at one time.
    pub fn classes(&self) -> (Vec<ClassCounts>, u64) {
        let mut found: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
        for account in self.open_accounts() {
            account.sizes(|size, is_lent| {
                let (lent, idle) = found.entry(size).or_default();
                *(if is_lent { lent } else { idle }) += 1;
            });
        }
        // After the accounts, so that a lease which is made meanwhile is not more lent than there are.
        let (sizes, bytes_peak) = self.census.read();
        let class = |(byte_size, size): (usize, Size)| {
            let (lent, idle) = found.get(&byte_size).copied().unwrap_or_default();
            ClassCounts { byte_size: byte_size as u64, lent, idle, leases: size.now, peak: size.peak }
        };
        (sizes.into_iter().map(class).collect(), bytes_peak)
    }

    /// The right to one more lease. Other sessions' idle leases make room before it is refused.
    pub(super) fn admit(&self, bytes: u64) -> Option<QuotaPermit> {
        let admit = || self.tally.admit(bytes, LEASES_MAX as u64, self.limits.bytes_max);
        admit().or_else(|| {
            self.trim(0);
            admit()
        })
    }

    fn open_accounts(&self) -> Vec<Arc<Account>> {
        let accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.iter().filter_map(Weak::upgrade).collect()
    }
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
        // The guard goes before a lease that was not wanted does: dropping the last reference takes the same lock.
        let lease = self.shard(name).read().unwrap_or_else(PoisonError::into_inner).get(&name).and_then(Weak::upgrade);
        lease.filter(|lease| lease.is_lent())
    }
}
