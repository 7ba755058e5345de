//! Which leases does a session have, and how much may it still borrow?

mod give_back;
mod lend;

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::{Pools, drop_leases};
use crate::deferred::{OwnerId, drop_together};
use crate::error::reason;
use crate::lease::free_list::FreeList;
use crate::lease::limits::LEASES_PER_SESSION_MAX;
use crate::lease::{Lease, LeaseError, LeaseName};
use crate::mapped_counts::{MappedCounts, Most};
use crate::sync::{AtomicBool, Mutex, MutexGuard};

/// The leases of one session. The account is closed with its session. Requests in flight keep the leases that they use.
pub struct Account {
    pools: Arc<Pools>,
    /// The key by which requests over other protocols find the session. `None` if the kernel had no random bits.
    key: Option<u128>,
    mapped_counts: Arc<MappedCounts>,
    /// Whether `forgotten` has names. Changed only under the lock.
    has_forgotten: AtomicBool,
    state: Mutex<State>,
}

struct State {
    lent: HashMap<LeaseName, HeldLease>,
    free_list: FreeList<Arc<Lease>>,
    /// The names of idle leases that were returned to the system, until the client is notified.
    forgotten: Vec<LeaseName>,
    /// Tags of requests that the client abandoned, the latest last.
    abandoned: VecDeque<u64>,
    closed: bool,
}

struct HeldLease {
    lease: Arc<Lease>,
    /// The client's tag of the request for which the lease was placed. 0 if it has none.
    tag: u64,
}

/// A lease that was just lent.
#[derive(Debug)]
pub struct BorrowedLease {
    /// The memory.
    pub lease: Arc<Lease>,
    /// The descriptor with which the client maps the lease. `None` if the session had this lease before, so that the client has the descriptor already.
    pub descriptor: Option<OwnedFd>,
}

/// What an operator may see of one lease. It gives no access to the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseState {
    /// The first digits of its name.
    pub name: String,
    /// The size of the lease in bytes.
    pub byte_size: usize,
    /// Whether a client has the lease. If not, the lease is idle.
    pub lent: bool,
    /// Number of Buffers and Slots over it.
    pub users: usize,
}

impl Account {
    pub(super) fn new(pools: Arc<Pools>, key: Option<u128>) -> Account {
        let state = State {
            lent: HashMap::new(),
            free_list: FreeList::new(),
            forgotten: Vec::new(),
            abandoned: VecDeque::new(),
            closed: false,
        };
        let has_forgotten = AtomicBool::new(false);
        let most = Most { regions: LEASES_PER_SESSION_MAX as u64, bytes: bytes_max(&pools) };
        let mapped_counts = Arc::new(MappedCounts::new(most));
        Account { pools, key, mapped_counts, has_forgotten, state: Mutex::new(state) }
    }

    /// The key of this session for requests over all protocols. Any client that knows it may have outputs placed in this session's leases.
    pub fn key(&self) -> Option<u128> {
        self.key
    }

    /// A lease that this session has, with its descriptor if that was not sent yet.
    pub fn fetch(&self, name: &str) -> Result<BorrowedLease, LeaseError> {
        self.find(name).ok_or(LeaseError::Unknown).and_then(BorrowedLease::of)
    }

    /// The lease with this name, if it is lent to this session.
    pub fn find(&self, name: &str) -> Option<Arc<Lease>> {
        // Most names are of regions. They are rejected here without taking the lock.
        let name = LeaseName::parse(name)?;
        self.lock().lent.get(&name).map(|lent| Arc::clone(&lent.lease))
    }

    /// The names of idle leases that were freed since the last call.
    pub fn take_forgotten(&self) -> Vec<LeaseName> {
        // This is called after every packet of a session, and nearly always there are no names.
        if !self.has_forgotten.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut state = self.lock();
        self.has_forgotten.store(false, Ordering::Release);
        std::mem::take(&mut state.forgotten)
    }

    /// The leases and bytes that count against this session's limits, including memory that waits to be unmapped.
    pub fn used(&self) -> (u64, u64) {
        let counts = self.mapped_counts.counts(0);
        (counts.mapped, counts.mapped_bytes)
    }

    /// The share of all sessions' bytes that is in use, as the bytes in use and the most that may be.
    pub fn used_by_all(&self) -> (u64, u64) {
        (self.pools.mapped_counts.counts(0).mapped_bytes, self.pools.limits().bytes_max)
    }

    /// The leases that the session has, lent and idle, by size. Leases that only a request uses, or that wait to be unmapped, are not listed, although they
    /// count against the session's limits.
    pub fn leases(&self) -> Vec<LeaseState> {
        let state = self.lock();
        let lent = state.lent.values().map(|lent| (&lent.lease, true));
        let all = lent.chain(state.free_list.iter().map(|lease| (lease, false)));
        let lease_state = |(lease, lent): (&Arc<Lease>, bool)| LeaseState {
            name: lease.name().beginning(),
            byte_size: lease.byte_size(),
            lent,
            // The account's own reference is not a user.
            users: Arc::strong_count(lease).saturating_sub(1),
        };
        let mut leases: Vec<_> = all.map(lease_state).collect();
        drop(state);
        leases.sort_by(|a, b| (a.byte_size, &a.name).cmp(&(b.byte_size, &b.name)));
        leases
    }

    /// The most bytes that may count against this session.
    pub fn bytes_max(&self) -> u64 {
        bytes_max(&self.pools)
    }

    /// Closes the account. All its leases are dropped, and nothing more is lent.
    pub fn close(&self) {
        let gone = {
            let mut state = self.lock();
            state.closed = true;
            state.forgotten.clear();
            let lent: Vec<_> = state.lent.drain().map(|(_, lent)| lent.lease).collect();
            for lease in &lent {
                lease.set_lent(false);
            }
            (lent, state.free_list.clear())
        };
        self.pools.remove_key(self.key);
        // The leases are dropped outside the lock, because unmapping takes time for each page and others may read the account meanwhile.
        drop_together(gone, self.used().1);
    }

    /// Whether the account is closed.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Number of idle leases, and their bytes.
    pub(super) fn idle(&self) -> (u64, u64) {
        let state = self.lock();
        state.free_list.iter().fold((0, 0), |(count, bytes), lease| (count + 1, bytes + lease.byte_size() as u64))
    }

    /// Calls `each` with the size of each lease, and whether it is lent.
    pub(super) fn sizes(&self, mut each: impl FnMut(usize, bool)) {
        let state = self.lock();
        state.lent.values().for_each(|lent| each(lent.lease.byte_size(), true));
        state.free_list.iter().for_each(|lease| each(lease.byte_size(), false));
    }

    /// Ends a round. Takes the idle leases that were not used for more than `rounds_max` rounds out of the account.
    pub(super) fn take_stale(&self, rounds_max: u32) -> Vec<Arc<Lease>> {
        let mut state = self.lock();
        let stale = state.free_list.age(rounds_max);
        self.note_forgotten(&mut state, &stale);
        stale
    }

    /// Frees the idle leases that were not used for the longest time, until these are `bytes` bytes or more. Returns the number of freed bytes. Leases
    /// that a request still uses stay.
    pub(super) fn free(&self, bytes: u64) -> u64 {
        let gone = {
            let mut state = self.lock();
            let gone = state.free_list.take_oldest(bytes, Lease::is_unused);
            self.note_forgotten(&mut state, &gone);
            gone
        };
        drop_leases(gone)
    }

    fn note_forgotten(&self, state: &mut State, gone: &[Arc<Lease>]) {
        state.forgotten.extend(gone.iter().map(|lease| lease.name()));
        self.has_forgotten.store(!state.forgotten.is_empty(), Ordering::Release);
    }

    /// Identifies this account in the queues of memory that waits to be unmapped.
    pub(super) fn owner(&self) -> OwnerId {
        self.mapped_counts.owner()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Refuses a closed account and an abandoned tag.
    fn check(&self, tag: u64) -> Result<(), LeaseError> {
        if self.closed {
            return Err(LeaseError::Closed);
        }
        if tag != 0 && self.abandoned.contains(&tag) {
            return Err(LeaseError::Abandoned);
        }
        Ok(())
    }

    fn hand_out(&mut self, lease: &Arc<Lease>, tag: u64) {
        lease.set_lent(true);
        lease.returned.store(false, Ordering::Release);
        self.lent.insert(lease.name(), HeldLease { lease: Arc::clone(lease), tag });
    }

    fn make_idle(&mut self, lease: Arc<Lease>) {
        lease.set_lent(false);
        lease.returned.store(true, Ordering::Release);
        self.free_list.put(lease.byte_size(), lease);
    }
}

impl BorrowedLease {
    fn of(lease: Arc<Lease>) -> Result<BorrowedLease, LeaseError> {
        let refused = |error| LeaseError::System { bytes: lease.byte_size() as u64, cause: reason(&error) };
        let descriptor = lease.take_file().map_err(refused)?;
        Ok(BorrowedLease { lease, descriptor })
    }
}

/// The most bytes of leases of one session.
fn bytes_max(pools: &Pools) -> u64 {
    pools.limits().session_bytes_max.min(pools.limits().bytes_max)
}

impl Drop for Account {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Account({:?} leases and bytes)", self.used())
    }
}
