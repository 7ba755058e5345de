//! What does one session have, and what may it still borrow?

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::class::class_bytes;
use super::limits::LEASES_PER_SESSION_MAX;
use super::shelf::Shelf;
use super::{Lease, LeaseError, LeaseName, Pools, memfd};
use crate::error::reason;
use crate::tally::{Tally, Ticket};

/// What one session was lent. Closed with its session; requests in flight keep what they use.
pub struct Account {
    pools: Arc<Pools>,
    tally: Arc<Tally>,
    state: Mutex<State>,
}

struct State {
    lent: HashMap<LeaseName, Arc<Lease>>,
    shelf: Shelf<Arc<Lease>>,
    /// Idle leases that were given back to the system, until the client is told.
    forgotten: Vec<LeaseName>,
    closed: bool,
}

/// A lease just lent.
#[derive(Debug)]
pub struct Loan {
    /// The memory.
    pub lease: Arc<Lease>,
    /// The way for the client to map it; `None` if the session had this lease before, and so its descriptor.
    pub descriptor: Option<OwnedFd>,
}

impl Account {
    pub(super) fn new(pools: Arc<Pools>) -> Account {
        let state = State { lent: HashMap::new(), shelf: Shelf::new(), forgotten: Vec::new(), closed: false };
        Account { pools, tally: Arc::default(), state: Mutex::new(state) }
    }

    /// At least `bytes` bytes: a lease that this session returned, with the bytes it left there, or a fresh one of zeros.
    pub fn borrow(&self, bytes: u64) -> Result<Loan, LeaseError> {
        if let Some(lease) = self.take_idle(bytes)? {
            return Ok(Loan { lease, descriptor: None });
        }
        self.fresh(bytes)
    }

    /// Takes a lease back. Requests that use it go on.
    pub fn give_back(&self, name: &str) -> Result<(), LeaseError> {
        let name = LeaseName::parse(name).ok_or(LeaseError::Unknown)?;
        let mut state = self.lock();
        let lease = state.lent.remove(&name).ok_or(LeaseError::Unknown)?;
        lease.set_lent(false);
        lease.returned.store(true, Ordering::Release);
        state.shelf.put(lease.byte_size(), lease);
        Ok(())
    }

    /// Takes back a loan that the client was never told of.
    pub fn cancel(&self, loan: Loan) {
        let mut state = self.lock();
        let Some(lease) = state.lent.remove(&loan.lease.name()) else { return };
        lease.set_lent(false);
        if loan.descriptor.is_none() {
            lease.returned.store(true, Ordering::Release);
            state.shelf.put(lease.byte_size(), lease);
        }
        // What never reached the client must not be lent as if it had: it goes with `loan`.
        drop(state);
        drop(loan);
    }

    /// The lease of that name, if it is lent to this session.
    pub fn find(&self, name: &str) -> Option<Arc<Lease>> {
        self.lock().lent.get(&LeaseName::parse(name)?).cloned()
    }

    /// The names of idle leases that are no more, each told once.
    pub fn take_forgotten(&self) -> Vec<LeaseName> {
        std::mem::take(&mut self.lock().forgotten)
    }

    /// Leases and bytes that count against this session.
    pub fn used(&self) -> (u64, u64) {
        let counts = self.tally.counts(0);
        (counts.mapped, counts.mapped_bytes)
    }

    /// Bytes that may count against it.
    pub fn bytes_max(&self) -> u64 {
        self.pools.limits().session_bytes_max.min(self.pools.limits().bytes_max)
    }

    /// Ends the account: everything it has goes, nothing more is lent.
    pub fn close(&self) {
        let gone = {
            let mut state = self.lock();
            state.closed = true;
            state.forgotten.clear();
            let lent: Vec<_> = state.lent.drain().map(|(_, lease)| lease).collect();
            for lease in &lent {
                lease.set_lent(false);
            }
            (lent, state.shelf.clear())
        };
        // Unmapping takes as long as there are pages, and others may look at the account meanwhile.
        drop(gone);
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Idle leases and their bytes.
    pub(super) fn idle(&self) -> (u64, u64) {
        let state = self.lock();
        state.shelf.iter().fold((0, 0), |(count, bytes), lease| (count + 1, bytes + lease.byte_size() as u64))
    }

    /// One round has passed: gives idle leases back that lay unused for more than `rounds_max` of them.
    pub(super) fn trim(&self, rounds_max: u32) -> u64 {
        let stale = {
            let mut state = self.lock();
            let stale = state.shelf.age(rounds_max);
            state.forgotten.extend(stale.iter().map(|lease| lease.name()));
            stale
        };
        stale.iter().map(|lease| lease.byte_size() as u64).sum()
    }

    fn take_idle(&self, bytes: u64) -> Result<Option<Arc<Lease>>, LeaseError> {
        let need = self.class(bytes)?;
        let mut state = self.lock();
        if state.closed {
            return Err(LeaseError::Closed);
        }
        // What a request still reads or writes must not be lent again.
        let taken = state.shelf.take(need, |lease| Arc::strong_count(lease) == 1);
        if let Some(lease) = &taken {
            lease.set_lent(true);
            lease.returned.store(false, Ordering::Release);
            state.lent.insert(lease.name(), Arc::clone(lease));
        }
        Ok(taken)
    }

    /// No lock is held while the system is asked or other accounts are trimmed.
    fn fresh(&self, bytes: u64) -> Result<Loan, LeaseError> {
        let size = self.class(bytes)?;
        let tickets = self.admit(size as u64)?;
        let refused = |error: std::io::Error| LeaseError::System { bytes, cause: reason(&error) };
        let (file, mapping) = memfd::make(size).map_err(refused)?;
        let name = LeaseName::random().map_err(refused)?;
        let index = Arc::downgrade(&self.pools.index);
        let lease = Arc::new(Lease {
            name,
            mapping,
            lent: AtomicBool::new(true),
            returned: AtomicBool::new(false),
            index,
            _tickets: tickets,
        });
        let mut state = self.lock();
        if state.closed {
            return Err(LeaseError::Closed);
        }
        self.pools.index.insert(&lease);
        state.lent.insert(name, Arc::clone(&lease));
        drop(state);
        Ok(Loan { lease, descriptor: Some(file.into()) })
    }

    /// The session's idle leases make room before it is refused.
    fn admit(&self, size: u64) -> Result<[Ticket; 2], LeaseError> {
        let mine = || self.tally.admit(size, LEASES_PER_SESSION_MAX as u64, self.bytes_max());
        let ticket = mine().or_else(|| {
            self.trim(0);
            mine()
        });
        let ticket = ticket.ok_or_else(|| {
            let (count, used) = self.used();
            LeaseError::SessionFull { bytes: size, used, count, bytes_max: self.bytes_max() }
        })?;
        let common = self.pools.admit(size).ok_or_else(|| {
            let counts = self.pools.counts();
            let bytes_max = self.pools.limits().bytes_max;
            LeaseError::PoolsFull { bytes: size, used: counts.bytes, count: counts.leases, bytes_max }
        })?;
        Ok([ticket, common])
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
