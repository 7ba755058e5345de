//! What do all accounts share?

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use crate::account::{Account, Book};
use crate::limits::{LIGHT_BYTES_MAX, LOG_APART_MS, STALL_SHED_APART_MS};
use crate::marks::{Holder, Limits, Marks, Shed, ShedReason, costliest, is_stopped};
use crate::waiters::Waiters;

/// The budgets of one server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Budgets(pub(crate) Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    limits: Limits,
    pub(crate) all: Scope,
    registry: Mutex<Registry>,
    pub(crate) waiters: Waiters,
    /// The last number that was given to a connection, a peer or somebody who waits.
    last_number: AtomicU64,
    shed: [AtomicU64; ShedReason::ALL.len()],
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

/// A peer with an open account.
#[derive(Debug)]
pub(crate) struct Peer {
    number: u64,
    pub(crate) name: String,
    pub(crate) scope: Scope,
}

/// A budget that several hold parts of.
#[derive(Debug)]
pub(crate) struct Scope {
    pub(crate) marks: Marks,
    /// Bytes. Threads book in any order, so it may be below zero for a moment.
    used: AtomicI64,
    /// How many hold much.
    heavy: AtomicI64,
    /// Who may go on past the low mark; 0 for nobody.
    finisher: AtomicU64,
}

/// The numbers at one moment, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes that clients make the server hold, but for `leaving`.
    pub used: u64,
    /// Bytes that connections hold which are being ended.
    pub leaving: u64,
    /// Bytes that they may.
    pub max: u64,
    /// Connections that were ended, by reason.
    pub shed: Vec<(&'static str, u64)>,
}

impl Budgets {
    /// Budgets with these limits.
    pub fn new(limits: Limits) -> Budgets {
        Budgets(Arc::new(Shared {
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
        }))
    }

    /// An account for a new connection of the peer called `peer`.
    pub fn open(&self, peer: &str) -> Account {
        let number = self.0.next_number();
        let mut registry = self.0.registry();
        let peer = registry.peers.get(peer).and_then(Weak::upgrade).unwrap_or_else(|| {
            let found = Arc::new(Peer { number, name: peer.to_owned(), scope: Scope::new(self.0.limits.peer) });
            registry.peers.insert(peer.to_owned(), Arc::downgrade(&found));
            found
        });
        let book = Arc::new(Book::new(number, Arc::clone(&self.0), peer, self.0.limits.connection));
        registry.books.insert(number, Arc::downgrade(&book));
        drop(registry);
        Account::new(book)
    }

    /// The numbers now. Looks at each open account.
    pub fn counts(&self) -> Counts {
        let books = self.0.books();
        let held =
            |is_leaving| books.iter().filter(|book| book.is_leaving() == is_leaving).map(|book| book.held()).sum();
        let shed = ShedReason::ALL.iter().zip(&self.0.shed);
        Counts {
            used: held(false),
            leaving: held(true),
            max: self.0.all.marks.high,
            shed: shed.map(|(reason, count)| (reason.name(), count.load(Ordering::Relaxed))).collect(),
        }
    }
}

impl Default for Budgets {
    /// Without limits.
    fn default() -> Budgets {
        Budgets::new(Limits::NONE)
    }
}

impl Shared {
    pub(crate) fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All open accounts. To be dropped outside of the registry's lock: the last reference to a book forgets it, which takes the lock.
    fn books(&self) -> Vec<Arc<Book>> {
        self.registry().books.values().filter_map(Weak::upgrade).collect()
    }

    /// A connection's account is gone.
    pub(crate) fn forget(&self, number: u64, peer: &Arc<Peer>) {
        let mut registry = self.registry();
        registry.books.remove(&number);
        // The account that goes is one reference.
        if Arc::strong_count(peer) == 1 {
            registry.peers.remove(&peer.name);
        }
    }

    /// Ends the costliest connections until their budget is kept.
    #[cold]
    pub(crate) fn shed_past_high(&self, book: &Book) {
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

impl Scope {
    pub(crate) fn new(marks: Marks) -> Scope {
        Scope { marks, used: AtomicI64::new(0), heavy: AtomicI64::new(0), finisher: AtomicU64::new(0) }
    }

    pub(crate) fn used(&self) -> u64 {
        u64::try_from(self.used.load(Ordering::SeqCst)).unwrap_or_default()
    }

    /// Books `now` bytes in place of `before`. The scope's bytes before and after.
    pub(crate) fn book(&self, before: u64, now: u64) -> (u64, u64) {
        let change = now as i64 - before as i64;
        let then = self.used.fetch_add(change, Ordering::SeqCst);
        let whole = |bytes| u64::try_from(bytes).unwrap_or_default();
        (whole(then), whole(then + change))
    }

    /// One who held `before` bytes of this holds `now`.
    pub(crate) fn count_heavy(&self, before: u64, now: u64) {
        let change = i64::from(now > LIGHT_BYTES_MAX) - i64::from(before > LIGHT_BYTES_MAX);
        if change != 0 {
            self.heavy.fetch_add(change, Ordering::SeqCst);
        }
    }

    /// Whether `read_permit` must wait, whose connection or peer holds `held` bytes of this. Past the high mark nobody may finish: what was
    /// ended has to be gone first.
    pub(crate) fn stops(&self, read_permit: u64, held: u64) -> bool {
        let heavy = u64::try_from(self.heavy.load(Ordering::SeqCst)).unwrap_or_default();
        let used = self.used();
        is_stopped(self.marks, used, held, heavy) && (used > self.marks.high || !self.may_finish(read_permit))
    }

    /// Whether `read_permit` is the one that may go on past the low mark, or becomes it.
    fn may_finish(&self, read_permit: u64) -> bool {
        match self.finisher.compare_exchange(0, read_permit, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => true,
            Err(other) => other == read_permit,
        }
    }

    /// `read_permit` is done. Whether it was the one that might go on.
    pub(crate) fn finished(&self, read_permit: u64) -> bool {
        self.finisher.load(Ordering::SeqCst) == read_permit
            && self.finisher.compare_exchange(read_permit, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}
