//! Which leases does a session have, and how much may it still borrow?

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use nerite_memory::ShareMark;

use super::{Pools, admit_or_free, drop_leases};
use crate::deferred::{Deferred, OwnerId, drop_together};
use crate::error::reason;
use crate::gpu::Gpu;
use crate::guard::watch;
use crate::lease::class::class_bytes;
use crate::lease::free_list::FreeList;
use crate::lease::limits::{ABANDONED_MAX, LEASES_PER_SESSION_MAX};
use crate::lease::{Lease, LeaseError, LeaseMemory, LeaseName, memfd};
use crate::sync::{AtomicBool, Mutex, MutexGuard};
use crate::tally::{QuotaPermit, Tally};

/// The leases of one session. Closed with its session. Requests in flight keep the leases that they use.
pub struct Account {
    pools: Arc<Pools>,
    /// The key by which requests over other protocols find the session. `None` if the kernel had no random bits.
    key: Option<u128>,
    tally: Arc<Tally>,
    /// Whether `forgotten` has names. Changed only under the lock.
    has_forgotten: AtomicBool,
    state: Mutex<State>,
}

struct State {
    lent: HashMap<LeaseName, HeldLease>,
    free_list: FreeList<Arc<Lease>>,
    /// Idle leases that were returned to the system. Kept until the client is told.
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
    /// The descriptor with which the client maps it. `None` if the session had this lease before, and so has its descriptor.
    pub descriptor: Option<OwnedFd>,
}

/// What an operator may see of one lease. It gives no access to the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseState {
    /// The first digits of its name.
    pub name: String,
    /// Bytes.
    pub byte_size: usize,
    /// Whether a client has it. If not, it is idle.
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
        Account { pools, key, tally: Arc::default(), has_forgotten, state: Mutex::new(state) }
    }

    /// The key of this session for requests over all protocols. Any client that knows it may have outputs placed in this session's leases.
    pub fn key(&self) -> Option<u128> {
        self.key
    }

    /// Borrows at least `bytes` bytes: a lease that this session returned, with the bytes that it left there, or a new lease of zeros.
    pub fn borrow(&self, bytes: u64) -> Result<BorrowedLease, LeaseError> {
        self.with_descriptor(self.lend(bytes, 0)?)
    }

    /// As [`Account::borrow`], if that needs neither the memory of idle leases nor a GPU's driver. `None` if it does.
    pub fn borrow_at_once(&self, bytes: u64) -> Result<Option<BorrowedLease>, LeaseError> {
        let size = self.class(bytes)?;
        let lease = match self.lend_idle(size, 0)? {
            Some(lease) => lease,
            // A new lease may be page-locked.
            None if self.pools.has_gpu() => return Ok(None),
            None => match self.admit_at_once(size as u64) {
                Some(permits) => self.lend_fresh(bytes, size, 0, permits)?,
                None => return Ok(None),
            },
        };
        self.with_descriptor(lease).map(Some)
    }

    /// Borrows at least `bytes` bytes for a process of the server, which maps them itself ([`nerite_memory::Share`]). Return them with [`Account::put_back`].
    pub fn take(&self, bytes: u64) -> Result<Arc<Lease>, LeaseError> {
        self.lend(bytes, 0)
    }

    /// Returns a lease of [`Account::take`]. It is lent again once nothing holds it any more.
    pub fn put_back(&self, lease: &Lease) {
        let mut state = self.lock();
        if let Some(lent) = state.lent.remove(&lease.name()) {
            state.make_idle(lent.lease);
        }
    }

    /// As [`Account::borrow`], for an output of a request with the client's tag `tag` (0 for none). The descriptor is kept until the client fetches it.
    pub fn place(&self, bytes: u64, tag: u64) -> Result<Arc<Lease>, LeaseError> {
        self.lend(bytes, tag)
    }

    /// A lease that this session has, with its descriptor if that was not sent yet.
    pub fn fetch(&self, name: &str) -> Result<BorrowedLease, LeaseError> {
        self.find(name).ok_or(LeaseError::Unknown).and_then(BorrowedLease::of)
    }

    /// Returns a lease. Requests that use it continue.
    pub fn give_back(&self, name: &str) -> Result<(), LeaseError> {
        let name = LeaseName::parse(name).ok_or(LeaseError::Unknown)?;
        let mut state = self.lock();
        let lent = state.lent.remove(&name).ok_or(LeaseError::Unknown)?;
        state.make_idle(lent.lease);
        Ok(())
    }

    /// Takes back a lease that was never reported to the client.
    pub fn cancel(&self, borrowed: BorrowedLease) {
        // If the descriptor did not reach the client, the lease must not be lent again without one. It is dropped together with `borrowed`.
        self.take_back(borrowed.lease.name(), borrowed.descriptor.is_none());
    }

    /// As [`Account::cancel`], for a lease of [`Account::place`].
    pub fn recall(&self, name: &str) {
        if let Some(name) = LeaseName::parse(name) {
            self.take_back(name, true);
        }
    }

    fn take_back(&self, name: LeaseName, keeps: bool) {
        let mut state = self.lock();
        let Some(HeldLease { lease, .. }) = state.lent.remove(&name) else { return };
        if keeps && !lease.is_unseen() {
            return state.make_idle(lease);
        }
        lease.set_lent(false);
        // Outside the lock, because unmapping may take long.
        drop(state);
        drop(lease);
    }

    /// The client no longer waits for the requests with the tag `tag`. Leases that were placed for them become idle, except for those in `kept`. No
    /// more leases are placed for them.
    pub fn abandon(&self, tag: u64, kept: &[String]) {
        if tag == 0 {
            return;
        }
        let mut state = self.lock();
        if !state.abandoned.contains(&tag) {
            state.abandoned.push_back(tag);
        }
        if state.abandoned.len() > ABANDONED_MAX {
            state.abandoned.pop_front();
        }
        let kept: HashSet<_> = kept.iter().filter_map(|name| LeaseName::parse(name)).collect();
        let unseen = |(name, lent): &(&LeaseName, &HeldLease)| lent.tag == tag && !kept.contains(name);
        let mine: Vec<_> = state.lent.iter().filter(unseen).map(|(name, _)| *name).collect();
        for name in mine {
            if let Some(lent) = state.lent.remove(&name) {
                state.make_idle(lent.lease);
            }
        }
    }

    /// The lease with this name, if it is lent to this session.
    pub fn find(&self, name: &str) -> Option<Arc<Lease>> {
        // Most names are those of regions, and cost no lock.
        let name = LeaseName::parse(name)?;
        self.lock().lent.get(&name).map(|lent| Arc::clone(&lent.lease))
    }

    /// The names of idle leases that were freed since the last call.
    pub fn take_forgotten(&self) -> Vec<LeaseName> {
        // Asked after every packet of a session, and nearly always there are none.
        if !self.has_forgotten.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut state = self.lock();
        self.has_forgotten.store(false, Ordering::Release);
        std::mem::take(&mut state.forgotten)
    }

    /// Leases and bytes that count against this session's limits, with those that wait to be unmapped.
    pub fn used(&self) -> (u64, u64) {
        let counts = self.tally.counts(0);
        (counts.mapped, counts.mapped_bytes)
    }

    /// The share of all sessions' bytes that is in use, as the bytes in use and the most that may be.
    pub fn used_by_all(&self) -> (u64, u64) {
        (self.pools.tally.counts(0).mapped_bytes, self.pools.limits().bytes_max)
    }

    /// The leases that the session has, lent and idle, by size. Others may count against its limits: those that only a request uses, and those that wait to be
    /// unmapped.
    pub fn leases(&self) -> Vec<LeaseState> {
        let state = self.lock();
        let lent = state.lent.values().map(|lent| (&lent.lease, true));
        let all = lent.chain(state.free_list.iter().map(|lease| (lease, false)));
        let told = |(lease, lent): (&Arc<Lease>, bool)| LeaseState {
            name: lease.name().beginning(),
            byte_size: lease.byte_size(),
            lent,
            // The account's own reference is not a user.
            users: Arc::strong_count(lease).saturating_sub(1),
        };
        let mut leases: Vec<_> = all.map(told).collect();
        drop(state);
        leases.sort_by(|a, b| (a.byte_size, &a.name).cmp(&(b.byte_size, &b.name)));
        leases
    }

    /// The most bytes that may count against this session.
    pub fn bytes_max(&self) -> u64 {
        self.pools.limits().session_bytes_max.min(self.pools.limits().bytes_max)
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
        // Outside the lock: unmapping takes time for each page, and others may read the account meanwhile.
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

    fn lend(&self, bytes: u64, tag: u64) -> Result<Arc<Lease>, LeaseError> {
        let size = self.class(bytes)?;
        match self.lend_idle(size, tag)? {
            Some(lease) => Ok(lease),
            None => self.lend_fresh(bytes, size, tag, self.admit(size as u64)?),
        }
    }

    fn lend_idle(&self, size: usize, tag: u64) -> Result<Option<Arc<Lease>>, LeaseError> {
        let mut state = self.lock();
        state.check(tag)?;
        // A lease that a request still reads or writes must not be lent again.
        let idle = state.free_list.take(size, Lease::is_idle);
        Ok(idle.inspect(|lease| state.hand_out(lease, tag)))
    }

    fn with_descriptor(&self, lease: Arc<Lease>) -> Result<BorrowedLease, LeaseError> {
        let name = lease.name();
        BorrowedLease::of(lease).inspect_err(|_| self.take_back(name, false))
    }

    /// No lock is held during system calls.
    fn lend_fresh(
        &self,
        bytes: u64,
        size: usize,
        tag: u64,
        permits: [QuotaPermit; 2],
    ) -> Result<Arc<Lease>, LeaseError> {
        let refused = |error: std::io::Error| LeaseError::System { bytes, cause: reason(&error) };
        let (file, mapping) = memfd::make(size).map_err(refused)?;
        let name = LeaseName::random().map_err(refused)?;
        let index = Arc::downgrade(&self.pools.index);
        let what = format!("a lease of {size} bytes");
        // SAFETY: the mapping goes into the LeaseMemory, which drops it after the lock by the order of its fields.
        let lock = unsafe { Gpu::lock(self.pools.gpu.as_ref(), &what, mapping.base(), mapping.len(), false) };
        // SAFETY: the range is what mmap has just made, in whole pages, and contains only the lease. The LeaseMemory unmaps it after `watch` is dropped, by
        // the order of its fields.
        let watch = unsafe { watch(mapping.base().as_ptr().expose_provenance(), mapping.len()) }.map_err(refused)?;
        let [own_permit, common_permit] = permits;
        let common = (common_permit, self.pools.census.count(size));
        let memory =
            LeaseMemory { lock, watch, mapping, file: file.into(), frees_pages: false, own_permit, _common: common };
        let lease = Arc::new(Lease {
            name,
            memory: Deferred::new(memory),
            lent: AtomicBool::new(true),
            returned: AtomicBool::new(false),
            seen: AtomicBool::new(false),
            mark: ShareMark::new(),
            index,
        });
        let mut state = self.lock();
        state.check(tag)?;
        self.pools.index.insert(&lease);
        state.hand_out(&lease, tag);
        Ok(lease)
    }

    /// Reserves quota for a lease of `size` bytes. `None` if idle leases must be freed first.
    fn admit_at_once(&self, size: u64) -> Option<[QuotaPermit; 2]> {
        Some([self.admit_own(size)?, self.pools.admit_at_once(size)?])
    }

    /// Identifies this account in the queues of memory that waits to be unmapped.
    pub(super) fn owner(&self) -> OwnerId {
        self.tally.owner()
    }

    fn admit_own(&self, size: u64) -> Option<QuotaPermit> {
        self.tally.admit(size, LEASES_PER_SESSION_MAX as u64, self.bytes_max())
    }

    /// Reserves quota for a lease of `size` bytes. Before it refuses, it frees idle leases of as many bytes, first those of this session. On a
    /// thread that serves connections, large ones are still mapped then, so it may refuse.
    fn admit(&self, size: u64) -> Result<[QuotaPermit; 2], LeaseError> {
        let permit = admit_or_free(self.owner(), || self.admit_own(size), || self.free(size));
        let permit = permit.ok_or_else(|| {
            let (count, used) = self.used();
            LeaseError::SessionFull { bytes: size, used, count, bytes_max: self.bytes_max() }
        })?;
        let common = self.pools.admit(size, self).ok_or_else(|| {
            let counts = self.pools.counts();
            let bytes_max = self.pools.limits().bytes_max;
            LeaseError::PoolsFull { bytes: size, used: counts.bytes, count: counts.leases, bytes_max }
        })?;
        Ok([permit, common])
    }

    fn class(&self, bytes: u64) -> Result<usize, LeaseError> {
        if bytes == 0 {
            return Err(LeaseError::Empty);
        }
        let large = LeaseError::Large { bytes, bytes_max: self.bytes_max() };
        // u64 and usize are the same width: `limits` asserts it.
        class_bytes(bytes as usize).filter(|&size| size as u64 <= self.bytes_max()).ok_or(large)
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
