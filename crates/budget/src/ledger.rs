//! How much does each connection hold, and all of them together?
//!
//! A ledger counts the bytes of one connection. A ledger that grows above a high mark may end another connection, so ledgers and their shared
//! state refer to each other.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::time::Instant;

use nerite_locks::Mutex;

use crate::budget::{Budget, Peer};
use crate::limits::{LOG_APART_MS, STALL_SHED_APART_MS, STEP_BYTES};
use crate::marks::{Holder, LargestFirst, Limits, Marks, OverShare, Shed, ShedReason};
use crate::waiters::Waiters;

/// A bit of [`Ledger::booked`] that no multiple of a step has.
const ENDING: u64 = 1;

/// The bytes that one connection holds.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) number: u64,
    pub(crate) shared: Arc<Shared>,
    pub(crate) peer: Arc<Peer>,
    /// Whether it counts what the peer itself keeps, and not what a connection holds. Then there is no connection to end.
    pub(crate) is_of_peer: bool,
    /// The connection's own budget. It counts in steps. The exact number is `held`.
    pub(crate) budget: Budget,
    /// Bytes charged.
    held: AtomicU64,
    /// Bytes counted in the budgets: `held`, rounded up to steps. The bit [`ENDING`] is set when the connection has to end, or has ended. Both are in
    /// one number, so that a thread that changes the bytes knows whether they count as leaving.
    booked: AtomicU64,
    pub(crate) shed: OnceLock<Shed>,
    /// Wakes the task that serves the connection, which ends it.
    pub(crate) driver: Mutex<Option<Waker>>,
    pub(crate) on_shed: OnceLock<ShedCallback>,
}

pub(crate) struct ShedCallback(pub(crate) Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for ShedCallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ShedCallback")
    }
}

/// What all ledgers share.
#[derive(Debug)]
pub(crate) struct Shared {
    limits: Limits,
    pub(crate) all: Budget,
    registry: Mutex<Registry>,
    pub(crate) waiters: Waiters,
    /// Bytes that all peers keep beyond their connections.
    retained: AtomicU64,
    /// The last number that was given to a connection, a peer or a waiter.
    last_number: AtomicU64,
    pub(crate) shed_counts: [AtomicU64; ShedReason::ALL.len()],
    /// How often [`OverShare`] or [`OverBudget`](crate::OverBudget) was returned.
    pub(crate) refused: AtomicU64,
    began: Instant,
    /// When a connection was last ended because of a stall, and when that was last logged, in ms since `began`.
    stall_shed_ms: AtomicU64,
    logged_ms: AtomicU64,
    unlogged: AtomicU64,
}

#[derive(Debug, Default)]
struct Registry {
    peers: HashMap<String, Weak<Peer>>,
    ledgers: HashMap<u64, Weak<Ledger>>,
    /// The ledgers of what peers keep beyond their connections, by the names of the peers.
    of_peers: HashMap<String, Weak<Ledger>>,
}

impl Ledger {
    fn new(number: u64, shared: Arc<Shared>, peer: Arc<Peer>, is_of_peer: bool, marks: Marks) -> Ledger {
        Ledger {
            number,
            shared,
            peer,
            is_of_peer,
            budget: Budget::new(marks),
            held: AtomicU64::new(0),
            booked: AtomicU64::new(0),
            shed: OnceLock::new(),
            driver: Mutex::default(),
            on_shed: OnceLock::new(),
        }
    }

    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::SeqCst)
    }

    /// Bytes that the connection may hold.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.shared.limits.connection.high
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.booked.load(Ordering::SeqCst) & ENDING != 0
    }

    /// Bytes that count in the budgets.
    fn booked(&self) -> u64 {
        self.booked.load(Ordering::SeqCst) & !ENDING
    }

    /// Notes that the connection has to end, or has ended. False if that was known.
    pub(crate) fn end(&self, shed: Option<Shed>) -> bool {
        let is_shed = shed.is_some();
        if let Some(shed) = shed {
            let _ = self.shed.set(shed);
        }
        if !self.mark_ending() {
            return false;
        }
        if let Some(ShedCallback(act)) = self.on_shed.get().filter(|_| is_shed) {
            act();
        }
        let driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner).take();
        driver.into_iter().for_each(Waker::wake);
        self.shared.waiters.wake_of(self.number);
        true
    }

    /// Sets [`ENDING`]. False if it was set. The bytes count as leaving a moment before that, for the same reason as in [`Ledger::apply`].
    fn mark_ending(&self) -> bool {
        let mut before = self.booked();
        loop {
            self.update_leaving(0, before);
            match self.booked.compare_exchange(before, before | ENDING, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(now) => {
                    self.update_leaving(before, 0);
                    if now & ENDING != 0 {
                        return false;
                    }
                    before = now;
                }
            }
        }
    }

    pub(crate) fn add(&self, bytes: u64) {
        let held = self.held.fetch_add(bytes, Ordering::SeqCst) + bytes;
        if held > self.booked() {
            self.update_budgets();
        }
    }

    /// Adds bytes that the peer keeps beyond its connections, unless it or all peers would keep more than they may.
    pub(crate) fn try_retain(&self, bytes: u64) -> Result<(), OverShare> {
        let limits = self.shared.limits;
        let refused = |of_all, retained, max| {
            self.count_refused();
            OverShare { of_all, peer: self.peer.name.clone(), bytes, retained, max }
        };
        let max = limits.retained_max_of_peer();
        let own = take(&self.held, bytes, max).map_err(|retained| refused(false, retained, max))?;
        // A peer that keeps little is not refused because of what others keep.
        let max = limits.all.retained_max_beside(own);
        if let Err(retained) = take(&self.shared.retained, bytes, max) {
            self.release(bytes);
            return Err(refused(true, retained, max));
        }
        if self.held() > self.booked() {
            self.update_budgets();
        }
        Ok(())
    }

    /// Counts a refusal because of a budget.
    pub(crate) fn count_refused(&self) {
        self.shared.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Releases bytes that [`Ledger::try_retain`] added.
    pub(crate) fn release_retained(&self, bytes: u64) {
        self.shared.retained.fetch_sub(bytes, Ordering::SeqCst);
        self.release(bytes);
    }

    pub(crate) fn release(&self, bytes: u64) {
        let held = self.held.fetch_sub(bytes, Ordering::SeqCst) - bytes;
        if held + 2 * STEP_BYTES <= self.booked() {
            self.update_budgets();
        }
    }

    /// Makes `booked` follow `held`. A thread that changes `held` reads `booked` afterwards, and one that changes `booked` reads `held` again.
    /// So the last of several threads leaves the two consistent.
    #[cold]
    fn update_budgets(&self) {
        loop {
            let booked = self.booked.load(Ordering::SeqCst);
            let (before, ending) = (booked & !ENDING, booked & ENDING);
            let held = self.held();
            let now = held.next_multiple_of(STEP_BYTES);
            let is_consistent = held <= before && held + 2 * STEP_BYTES > before;
            if is_consistent {
                return;
            }
            if self.booked.compare_exchange(booked, now | ending, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                self.apply(before, now, ending != 0);
            }
        }
    }

    fn apply(&self, before: u64, now: u64, is_ending: bool) {
        let mut fell = false;
        let mut is_past_high = false;
        // In this order the staying bytes are never overestimated, so no other connection is ended needlessly.
        if is_ending && now > before {
            self.update_leaving(before, now);
        }
        let own = self.budget.update(before, now);
        let peer = self.peer.budget.update(before, now);
        let all = self.shared.all.update(before, now);
        if is_ending && now < before {
            self.update_leaving(before, now);
        }
        // A peer's budget is shared by its connections, and the server's by the peers.
        let mut is_lighter = self.peer.budget.count_heavy(before, now);
        is_lighter |= self.shared.all.count_heavy(peer.0, peer.1);
        for (budget, (then, now)) in [(&self.budget, own), (&self.peer.budget, peer), (&self.shared.all, all)] {
            let falls_past = |mark| then > mark && now <= mark;
            fell |= falls_past(budget.marks.low) || falls_past(budget.marks.high);
            is_past_high |= now > budget.marks.high;
        }
        if now > before && is_past_high {
            self.shared.shed_past_high(self);
        }
        // One heavy holder less leaves a larger share to the others.
        if fell || is_lighter {
            self.shared.waiters.wake_some();
        }
    }

    fn update_leaving(&self, before: u64, now: u64) {
        for budget in [&self.peer.budget, &self.shared.all] {
            budget.update_leaving(before, now);
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        let rest = self.booked.swap(0, Ordering::SeqCst);
        self.held.store(0, Ordering::SeqCst);
        self.apply(rest & !ENDING, 0, rest & ENDING != 0);
        self.shared.forget(self.number, &self.peer);
    }
}

impl Shared {
    pub(crate) fn new(limits: Limits) -> Shared {
        Shared {
            limits,
            all: Budget::new(limits.all),
            registry: Mutex::default(),
            waiters: Waiters::default(),
            retained: AtomicU64::new(0),
            last_number: AtomicU64::new(0),
            shed_counts: Default::default(),
            refused: AtomicU64::new(0),
            began: Instant::now(),
            stall_shed_ms: AtomicU64::new(0),
            logged_ms: AtomicU64::new(0),
            unlogged: AtomicU64::new(0),
        }
    }

    /// A ledger for a new connection of the peer with that name.
    pub(crate) fn open(self: &Arc<Self>, peer: &str) -> Arc<Ledger> {
        self.open_in(&mut self.registry(), peer, false, self.limits.connection)
    }

    /// The ledger of what the peer with that name keeps beyond its connections.
    pub(crate) fn open_of_peer(self: &Arc<Self>, peer: &str) -> Arc<Ledger> {
        let mut registry = self.registry();
        if let Some(found) = registry.of_peers.get(peer).and_then(Weak::upgrade) {
            return found;
        }
        let ledger = self.open_in(&mut registry, peer, true, Marks::NONE);
        registry.of_peers.insert(peer.to_owned(), Arc::downgrade(&ledger));
        ledger
    }

    fn open_in(self: &Arc<Self>, registry: &mut Registry, peer: &str, is_of_peer: bool, marks: Marks) -> Arc<Ledger> {
        let number = self.next_number();
        let peer = registry.peers.get(peer).and_then(Weak::upgrade).unwrap_or_else(|| {
            let found = Arc::new(Peer { number, name: peer.to_owned(), budget: Budget::new(self.limits.peer) });
            registry.peers.insert(peer.to_owned(), Arc::downgrade(&found));
            found
        });
        let ledger = Arc::new(Ledger::new(number, Arc::clone(self), peer, is_of_peer, marks));
        registry.ledgers.insert(number, Arc::downgrade(&ledger));
        ledger
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All open ledgers. They must be dropped outside of the registry's lock, because dropping the last reference to one takes that lock.
    pub(crate) fn ledgers(&self) -> Vec<Arc<Ledger>> {
        self.registry().ledgers.values().filter_map(Weak::upgrade).collect()
    }

    /// Removes a ledger.
    fn forget(&self, number: u64, peer: &Arc<Peer>) {
        let mut registry = self.registry();
        registry.ledgers.remove(&number);
        // Another ledger of the peer may have been opened meanwhile.
        if registry.of_peers.get(&peer.name).is_some_and(|kept| kept.strong_count() == 0) {
            registry.of_peers.remove(&peer.name);
        }
        // The ledger that is being dropped has one reference.
        if Arc::strong_count(peer) == 1 {
            registry.peers.remove(&peer.name);
        }
    }

    /// Ends the largest connections until the budgets are within their high marks. All open accounts are visited only if one of them is ended.
    #[cold]
    fn shed_past_high(&self, ledger: &Ledger) {
        if ledger.held() > ledger.budget.marks.high {
            self.shed_itself(ShedReason::Connection, ledger);
        }
        let peer = &ledger.peer;
        self.shed_while(ShedReason::Peer, &peer.budget, |other| Arc::ptr_eq(&other.peer, peer));
        self.shed_while(ShedReason::All, &self.all, |_| true);
    }

    /// Ends the largest connection in the budget that the stalled connection of `ledger` waits for.
    pub(crate) fn shed_stalled(&self, ledger: &Ledger) {
        let now_ms = self.now_ms();
        let last_ms = self.stall_shed_ms.load(Ordering::Relaxed);
        let is_early = last_ms > 0 && now_ms < last_ms + STALL_SHED_APART_MS;
        if is_early
            || self.stall_shed_ms.compare_exchange(last_ms, now_ms, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let peer = &ledger.peer;
        let low = |budget: &Budget| budget.used() > budget.marks.low;
        if low(&ledger.budget) {
            self.shed_itself(ShedReason::Stalled, ledger);
        } else if low(&peer.budget) {
            self.shed_one(ShedReason::Stalled, &peer.budget, |other| Arc::ptr_eq(&other.peer, peer));
        } else if low(&self.all) {
            self.shed_one(ShedReason::Stalled, &self.all, |_| true);
        }
    }

    /// Ends connections, the largest first, until the budget is within its high mark. All ledgers are visited once, however many are ended.
    fn shed_while(&self, reason: ShedReason, budget: &Budget, belongs: impl Fn(&Ledger) -> bool) {
        if budget.staying() > budget.marks.high {
            self.shed_some(reason, budget, belongs, || budget.staying() > budget.marks.high);
        }
    }

    /// Ends connections in `budget`, the largest first, as long as `goes_on`. Ending a connection does not release what its peer keeps beyond
    /// connections, so that does not count in the order.
    fn shed_some(
        &self,
        reason: ShedReason,
        budget: &Budget,
        belongs: impl Fn(&Ledger) -> bool,
        mut goes_on: impl FnMut() -> bool,
    ) {
        let ledgers = self.ledgers();
        let may_end = |ledger: &&Arc<Ledger>| belongs(ledger) && !ledger.is_of_peer && !ledger.is_ending();
        let staying: HashMap<u64, &Arc<Ledger>> =
            ledgers.iter().filter(may_end).map(|ledger| (ledger.number, ledger)).collect();
        let holder =
            |ledger: &&Arc<Ledger>| Holder { id: ledger.number, peer: ledger.peer.number, held: ledger.held() };
        for ledger in LargestFirst::of(staying.values().map(holder)).filter_map(|id| staying.get(&id)) {
            if !goes_on() {
                return;
            }
            self.shed(reason, budget, budget.staying(), ledger);
        }
    }

    /// Ends the largest connection in `budget`.
    fn shed_one(&self, reason: ShedReason, budget: &Budget, belongs: impl Fn(&Ledger) -> bool) {
        let mut is_first = true;
        self.shed_some(reason, budget, belongs, || std::mem::take(&mut is_first));
    }

    fn shed_itself(&self, reason: ShedReason, ledger: &Ledger) {
        self.shed(reason, &ledger.budget, ledger.held(), ledger);
    }

    /// Ends the connection of `ledger`, because `used` bytes count against `budget`.
    fn shed(&self, reason: ShedReason, budget: &Budget, used: u64, ledger: &Ledger) {
        let peer = ledger.peer.name.clone();
        let shed = Shed { reason, peer, used, max: budget.marks.high, held: ledger.held() };
        if ledger.end(Some(shed.clone())) {
            self.count(&shed);
        }
    }

    fn count(&self, shed: &Shed) {
        let index = ShedReason::ALL.iter().position(|reason| *reason == shed.reason).unwrap_or_default();
        self.shed_counts[index].fetch_add(1, Ordering::Relaxed);
        let (now_ms, last_ms) = (self.now_ms(), self.logged_ms.load(Ordering::Relaxed));
        let is_early = last_ms > 0 && now_ms < last_ms + LOG_APART_MS;
        if is_early || self.logged_ms.compare_exchange(last_ms, now_ms, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            self.unlogged.fetch_add(1, Ordering::Relaxed);
            return;
        }
        match self.unlogged.swap(0, Ordering::Relaxed) {
            0 => log::warn!("a connection was ended: {shed}"),
            more => log::warn!("{} connections were ended, the last one: {shed}", more + 1),
        }
    }

    /// At least 1, because 0 means never.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }
}

/// Adds `bytes` to `sum`, and returns the new sum. Err: the sum, which is unchanged because the new sum would exceed `max`.
fn take(sum: &AtomicU64, bytes: u64, max: u64) -> Result<u64, u64> {
    let next = |now: u64| now.checked_add(bytes).filter(|sum| *sum <= max);
    sum.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).map(|before| before + bytes)
}
