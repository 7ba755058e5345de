//! What does one connection hold?

use std::sync::{Arc, PoisonError};
use std::task::Waker;

use bytes::Bytes;

use crate::book::{Book, OnShed};
use crate::limits::{CONNECTION_BYTES, LIGHT_BYTES_MAX, MOVED_BYTES_MIN};
use crate::marks::{OverBudget, Shed};

/// The account of one connection. Its clones are the same account, which lives until the last charge is gone.
#[derive(Clone, Debug)]
pub struct Account(Arc<Book>);

impl Account {
    pub(crate) fn new(book: Arc<Book>) -> Account {
        book.add(CONNECTION_BYTES);
        Account(book)
    }

    /// Charges `bytes` until the charge is dropped.
    pub fn charge(&self, bytes: usize) -> Charge {
        let mut charge = Charge { account: Some(self.clone()), bytes: 0 };
        charge.resize(bytes);
        charge
    }

    /// Charges `bytes`, to be released by [`Account::release`]: for what is counted in many places.
    pub fn add(&self, bytes: usize) {
        self.0.add(bytes as u64);
    }

    /// Releases what was added.
    pub fn release(&self, bytes: usize) {
        self.0.release(bytes as u64);
    }

    /// Bytes charged now.
    pub fn held(&self) -> u64 {
        self.0.held()
    }

    /// Refuses a message of `bytes` bytes that can never be held over this connection, before any of it is read.
    pub fn check_announced(&self, bytes: u64) -> Result<(), OverBudget> {
        let max = self.0.bytes_max();
        if bytes <= max { Ok(()) } else { Err(OverBudget { bytes, max }) }
    }

    /// Something that wants to read on over this connection.
    pub fn read_permit(&self) -> ReadPermit {
        ReadPermit { account: self.clone(), number: 0, waits: false, seen: [0; 3] }
    }

    /// Why the connection has to end, if it has to.
    pub fn shed(&self) -> Option<&Shed> {
        if self.0.is_leaving() { self.0.shed.get() } else { None }
    }

    /// Has `act` called when the connection has to end, on any thread and before its driver is woken. Only the first one counts.
    pub fn on_shed(&self, act: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.on_shed.set(OnShed(Box::new(act)));
    }

    /// As [`Account::shed`], and has `waker` told when it has to end. For the one who drives the connection.
    pub fn shed_or_wake(&self, waker: &Waker) -> Option<&Shed> {
        // The waker of a task mostly stays the same, and this is asked often.
        if !self.0.is_leaving() {
            let mut driver = self.0.driver.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *driver {
                Some(known) => known.clone_from(waker),
                None => *driver = Some(waker.clone()),
            }
        }
        self.shed()
    }

    /// The connection is closed: what it still holds will go, and nobody needs to end it.
    pub fn close(&self) {
        self.0.end(None);
    }
}

/// Bytes charged to an account while this lives.
#[derive(Debug, Default)]
pub struct Charge {
    /// `None` for a charge of nothing to nobody.
    account: Option<Account>,
    bytes: usize,
}

impl Charge {
    /// Charges so many bytes from now on.
    pub fn resize(&mut self, bytes: usize) {
        let Some(account) = &self.account else { return };
        if bytes > self.bytes {
            account.add(bytes - self.bytes);
        } else if bytes < self.bytes {
            account.release(self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// Charges so many bytes more.
    pub fn grow(&mut self, bytes: usize) {
        self.resize(self.bytes.saturating_add(bytes));
    }

    /// Bytes charged.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.resize(0);
    }
}

/// `bytes`, charged until the last reference to them is gone: for answers, which are held until the socket took them.
pub fn paid(bytes: Bytes, charge: Charge) -> Bytes {
    if bytes.is_empty() || charge.bytes == 0 { bytes } else { Bytes::from_owner(Paid { bytes, _charge: charge }) }
}

struct Paid {
    bytes: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for Paid {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The right of one body to be read on, which may be suspended.
#[derive(Debug)]
pub struct ReadPermit {
    account: Account,
    /// Its number among those who wait; 0 as long as it never had to.
    number: u64,
    waits: bool,
    /// Bytes of the three budgets at the last look.
    seen: [u64; 3],
}

/// Whether a body may be read on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It may.
    Now,
    /// Not now; the waker is told when to look again.
    Later,
    /// Never: the connection has to end.
    Never(Shed),
}

impl ReadPermit {
    /// Whether to read on. `stays` to have the waker told of news even after [`Turn::Now`].
    pub fn turn(&mut self, waker: &Waker, stays: bool) -> Turn {
        if let Some(shed) = self.account.shed() {
            return Turn::Never(shed.clone());
        }
        if !self.is_stopped() && !stays {
            self.stop_waiting();
            return Turn::Now;
        }
        if !self.waits {
            let book = &*self.account.0;
            self.seen = [book.held(), book.peer.scope.used(), book.shared.all.used()];
        }
        self.waits = true;
        if self.number == 0 {
            self.number = self.account.0.shared.next_number();
        }
        self.account.0.shared.waiters.join(self.number, waker);
        // What was released meanwhile may not have seen us wait.
        if let Some(shed) = self.account.shed() {
            return Turn::Never(shed.clone());
        }
        if self.is_stopped() {
            return Turn::Later;
        }
        if !stays {
            self.stop_waiting();
        }
        Turn::Now
    }

    /// Whether to take anything more from a connection's socket: not past a high mark, where its own bytes are among those that
    /// are too many, and not when it has to end.
    pub fn socket_turn(&mut self, waker: &Waker) -> bool {
        if self.may_take() {
            self.stop_waiting();
            return true;
        }
        if self.number == 0 {
            self.number = self.account.0.shared.next_number();
        }
        self.waits = true;
        self.account.0.shared.waiters.join(self.number, waker);
        // What was released meanwhile may not have seen us wait.
        let may_take = self.may_take();
        if may_take {
            self.stop_waiting();
        }
        may_take
    }

    fn may_take(&self) -> bool {
        let book = &*self.account.0;
        let scopes = [&book.scope, &book.peer.scope, &book.shared.all];
        let is_kept = scopes.iter().all(|scope| scope.used() <= scope.marks.high);
        self.account.shed().is_none() && (is_kept || book.held() <= LIGHT_BYTES_MAX)
    }

    /// What was to be read is read: another one may take the turn.
    pub fn done(&mut self) {
        if self.number == 0 {
            return;
        }
        self.stop_waiting();
        let book = &self.account.0;
        let scopes = [&book.scope, &book.peer.scope, &book.shared.all];
        if scopes.map(|scope| scope.finished(self.number)).contains(&true) {
            book.shared.waiters.wake();
        }
    }

    /// To be called after each [`limits::STALL_MS`](crate::limits::STALL_MS) of waiting. If none of the budgets changed by much
    /// since the last call, the costliest of those that it waits for is ended.
    pub fn waited(&mut self) {
        let book = &*self.account.0;
        let now = [book.held(), book.peer.scope.used(), book.shared.all.used()];
        let before = std::mem::replace(&mut self.seen, now);
        if now.iter().zip(before).all(|(now, before)| now.abs_diff(before) < MOVED_BYTES_MIN) {
            book.shared.shed_stalled(book);
        }
    }

    fn is_stopped(&mut self) -> bool {
        let book = &*self.account.0;
        let held = book.held();
        if [&book.scope, &book.peer.scope, &book.shared.all].iter().all(|scope| scope.used() <= scope.marks.low) {
            return false;
        }
        if self.number == 0 {
            self.number = book.shared.next_number();
        }
        book.scope.stops(self.number, held)
            || book.peer.scope.stops(self.number, held)
            || book.shared.all.stops(self.number, book.peer.scope.used())
    }

    fn stop_waiting(&mut self) {
        if std::mem::take(&mut self.waits) {
            self.account.0.shared.waiters.leave(self.number);
        }
    }
}

impl Drop for ReadPermit {
    fn drop(&mut self) {
        self.done();
    }
}
