//! What is written down of each connection, and of all of them?
//!
//! The books and what they share know each other: a book that grows past a mark may end another one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::time::Instant;

use crate::limits::{LOG_APART_MS, STALL_SHED_APART_MS, STEP_BYTES};
use crate::marks::{Holder, Limits, Marks, Shed, ShedReason, costliest};
use crate::scope::{Peer, Scope};
use crate::waiters::Waiters;

/// What one connection holds.
#[derive(Debug)]
pub(crate) struct Book {
    pub(crate) number: u64,
    pub(crate) shared: Arc<Shared>,
    pub(crate) peer: Arc<Peer>,
    /// The connection's own budget. Its bytes are exact, and not kept here.
    pub(crate) scope: Scope,
    /// Bytes charged.
    held: AtomicU64,
    /// Bytes booked with the peer and the server: `held`, in steps.
    booked: AtomicU64,
    leaving: AtomicBool,
    pub(crate) shed: OnceLock<Shed>,
    /// Who ends the connection.
    pub(crate) driver: Mutex<Option<Waker>>,
    pub(crate) on_shed: OnceLock<OnShed>,
}

pub(crate) struct OnShed(pub(crate) Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for OnShed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnShed")
    }
}

/// What all books share.
#[derive(Debug)]
pub(crate) struct Shared {
    limits: Limits,
    pub(crate) all: Scope,
    registry: Mutex<Registry>,
    pub(crate) waiters: Waiters,
    /// The last number that was given to a connection, a peer or somebody who waits.
    last_number: AtomicU64,
    pub(crate) shed: [AtomicU64; ShedReason::ALL.len()],
    began: Instant,
    /// Milliseconds since the beginning: when a stall last ended somebody, and when that was last logged.
    stall_shed_ms: AtomicU64,
    logged_ms: AtomicU64,
    unlogged: AtomicU64,
}

#[derive(Debug, Default)]
struct Registry {
    peers: HashMap<String, Weak<Peer>>,
    books: HashMap<u64, Weak<Book>>,
}

impl Book {
    fn new(number: u64, shared: Arc<Shared>, peer: Arc<Peer>, marks: Marks) -> Book {
        Book {
            number,
            shared,
            peer,
            scope: Scope::new(marks),
            held: AtomicU64::new(0),
            booked: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
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

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// The connection has to go, or is gone. False if that was known.
    pub(crate) fn end(&self, shed: Option<Shed>) -> bool {
        let is_shed = shed.is_some();
        if let Some(shed) = shed {
            let _ = self.shed.set(shed);
        }
        if self.leaving.swap(true, Ordering::AcqRel) {
            return false;
        }
        if let Some(OnShed(act)) = self.on_shed.get().filter(|_| is_shed) {
            act();
        }
        let driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner).take();
        driver.into_iter().for_each(Waker::wake);
        self.shared.waiters.wake();
        true
    }

    pub(crate) fn add(&self, bytes: u64) {
        let held = self.held.fetch_add(bytes, Ordering::SeqCst) + bytes;
        if held > self.booked.load(Ordering::SeqCst) {
            self.book();
        }
    }

    pub(crate) fn release(&self, bytes: u64) {
        let held = self.held.fetch_sub(bytes, Ordering::SeqCst) - bytes;
        if held + 2 * STEP_BYTES <= self.booked.load(Ordering::SeqCst) {
            self.book();
        }
    }

    /// Brings what is booked in line with what is held. Whoever changes `held` looks at `booked` afterwards, and whoever changes
    /// `booked` looks at `held` again, so the last of several threads leaves the two in line.
    #[cold]
    fn book(&self) {
        loop {
            let before = self.booked.load(Ordering::SeqCst);
            let held = self.held();
            let now = held.next_multiple_of(STEP_BYTES);
            let is_in_line = held <= before && held + 2 * STEP_BYTES > before;
            if is_in_line {
                return;
            }
            if self.booked.compare_exchange(before, now, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                self.pass_on(before, now);
            }
        }
    }

    fn pass_on(&self, before: u64, now: u64) {
        let mut fell = false;
        let mut is_past_high = false;
        let own = self.scope.book(before, now);
        let peer = self.peer.scope.book(before, now);
        let all = self.shared.all.book(before, now);
        // A peer's memory is shared among its connections, all memory among the peers.
        self.peer.scope.count_heavy(before, now);
        self.shared.all.count_heavy(peer.0, peer.1);
        for (scope, (then, now)) in [(&self.scope, own), (&self.peer.scope, peer), (&self.shared.all, all)] {
            let falls_past = |mark| then > mark && now <= mark;
            fell |= falls_past(scope.marks.low) || falls_past(scope.marks.high);
            is_past_high |= now > scope.marks.high;
        }
        if now > before && is_past_high {
            self.shared.shed_past_high(self);
        }
        if fell || (now < before && now == 0) {
            self.shared.waiters.wake();
        }
    }
}

impl Drop for Book {
    fn drop(&mut self) {
        let rest = self.booked.swap(0, Ordering::SeqCst);
        self.held.store(0, Ordering::SeqCst);
        self.pass_on(rest, 0);
        self.shared.forget(self.number, &self.peer);
    }
}

impl Shared {
    pub(crate) fn new(limits: Limits) -> Shared {
        Shared {
            limits,
            all: Scope::new(limits.all),
            registry: Mutex::default(),
            waiters: Waiters::default(),
            last_number: AtomicU64::new(0),
            shed: Default::default(),
            began: Instant::now(),
            stall_shed_ms: AtomicU64::new(0),
            logged_ms: AtomicU64::new(0),
            unlogged: AtomicU64::new(0),
        }
    }

    /// A book for a new connection of the peer called `peer`.
    pub(crate) fn open(self: &Arc<Self>, peer: &str) -> Arc<Book> {
        let number = self.next_number();
        let mut registry = self.registry();
        let peer = registry.peers.get(peer).and_then(Weak::upgrade).unwrap_or_else(|| {
            let found = Arc::new(Peer { number, name: peer.to_owned(), scope: Scope::new(self.limits.peer) });
            registry.peers.insert(peer.to_owned(), Arc::downgrade(&found));
            found
        });
        let book = Arc::new(Book::new(number, Arc::clone(self), peer, self.limits.connection));
        registry.books.insert(number, Arc::downgrade(&book));
        drop(registry);
        book
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All open accounts. To be dropped outside of the registry's lock: the last reference to a book forgets it, which takes the lock.
    pub(crate) fn books(&self) -> Vec<Arc<Book>> {
        self.registry().books.values().filter_map(Weak::upgrade).collect()
    }

    /// A connection's account is gone.
    fn forget(&self, number: u64, peer: &Arc<Peer>) {
        let mut registry = self.registry();
        registry.books.remove(&number);
        // The account that goes is one reference.
        if Arc::strong_count(peer) == 1 {
            registry.peers.remove(&peer.name);
        }
    }

    /// Ends the costliest connections until their budget is kept.
    #[cold]
    fn shed_past_high(&self, book: &Book) {
        if book.held() > book.scope.marks.high {
            self.shed_while(ShedReason::Connection, &book.scope, |other| other.number == book.number);
        }
        let peer = &book.peer;
        if peer.scope.used() > peer.scope.marks.high {
            self.shed_while(ShedReason::Peer, &peer.scope, |other| Arc::ptr_eq(&other.peer, peer));
        }
        if self.all.used() > self.all.marks.high {
            self.shed_while(ShedReason::All, &self.all, |_| true);
        }
    }

    /// Nothing moved for `book`'s connection: ends the costliest of those it waits for.
    pub(crate) fn shed_stalled(&self, book: &Book) {
        let now_ms = self.now_ms();
        let last_ms = self.stall_shed_ms.load(Ordering::Relaxed);
        let is_early = last_ms > 0 && now_ms < last_ms + STALL_SHED_APART_MS;
        if is_early
            || self.stall_shed_ms.compare_exchange(last_ms, now_ms, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let peer = &book.peer;
        let low = |scope: &Scope| scope.used() > scope.marks.low;
        // Whatever is held is too much then: what is booked, in steps, may be past the mark where what is held is not.
        if low(&book.scope) {
            self.shed_one(ShedReason::Stalled, &book.scope, 0, |other| other.number == book.number);
        } else if low(&peer.scope) {
            self.shed_one(ShedReason::Stalled, &peer.scope, 0, |other| Arc::ptr_eq(&other.peer, peer));
        } else if low(&self.all) {
            self.shed_one(ShedReason::Stalled, &self.all, 0, |_| true);
        }
    }

    fn shed_while(&self, reason: ShedReason, scope: &Scope, belongs: impl Fn(&Book) -> bool) {
        while self.shed_one(reason, scope, scope.marks.high, &belongs) {}
    }

    /// Ends the costliest connection in `scope` if those that stay hold more than `max`. Whether there was one.
    fn shed_one(&self, reason: ShedReason, scope: &Scope, max: u64, belongs: impl Fn(&Book) -> bool) -> bool {
        let books = self.books();
        let of_scope: Vec<_> = books.iter().filter(|book| belongs(book)).collect();
        let holders: Vec<_> = of_scope
            .iter()
            .map(|book| Holder {
                id: book.number,
                peer: book.peer.number,
                held: book.held(),
                is_leaving: book.is_leaving(),
            })
            .collect();
        let Some(id) = costliest(&holders, max) else { return false };
        let Some(book) = of_scope.iter().find(|book| book.number == id) else { return false };
        let used = holders.iter().map(|holder| holder.held).sum();
        let peer = book.peer.name.clone();
        let shed = Shed { reason, peer, used, max: scope.marks.high, held: book.held() };
        if book.end(Some(shed.clone())) {
            self.count(&shed);
        }
        true
    }

    fn count(&self, shed: &Shed) {
        let place = ShedReason::ALL.iter().position(|reason| *reason == shed.reason).unwrap_or_default();
        self.shed[place].fetch_add(1, Ordering::Relaxed);
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

    /// At least 1, so that 0 can stand for never.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }
}
