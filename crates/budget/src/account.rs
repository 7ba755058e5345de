//! What does one connection hold?

use std::sync::{Arc, PoisonError};
use std::task::Waker;

use bytes::Bytes;

use crate::ledger::{Ledger, ShedCallback};
use crate::limits::{CONNECTION_BYTES, LIGHT_BYTES_MAX, MOVED_BYTES_MIN};
use crate::marks::{OverBudget, Shed};
use crate::waiters::Key;

/// The account of one connection. A clone is the same account. It lives until its last charge is dropped.
#[derive(Clone, Debug)]
pub struct Account(Arc<Ledger>);

impl Account {
    pub(crate) fn new(ledger: Arc<Ledger>) -> Account {
        ledger.add(CONNECTION_BYTES);
        Account(ledger)
    }

    /// Charges `bytes` until the charge is dropped.
    pub fn charge(&self, bytes: usize) -> Charge {
        let mut charge = Charge { account: Some(self.clone()), bytes: 0 };
        charge.resize(bytes);
        charge
    }

    /// Charges `bytes` until [`Account::release`] releases them. For bytes that are counted in many places.
    pub fn add(&self, bytes: usize) {
        self.0.add(bytes as u64);
    }

    /// Releases bytes that [`Account::add`] charged.
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
        if bytes <= max {
            return Ok(());
        }
        self.0.count_refused();
        Err(OverBudget { bytes, max })
    }

    /// A permit for one body of this connection.
    pub fn read_permit(&self) -> ReadPermit {
        ReadPermit { account: self.clone(), number: 0, waits: false, seen: [0; 3] }
    }

    /// Why the connection has to end, if it has to.
    pub fn shed(&self) -> Option<&Shed> {
        if self.0.is_ending() { self.0.shed.get() } else { None }
    }

    /// Sets a function that is called when the connection has to end: on any thread, before its task is woken. Later calls have no effect.
    pub fn on_shed(&self, act: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.on_shed.set(ShedCallback(Box::new(act)));
    }

    /// As [`Account::shed`], and registers `waker` to be woken when the connection has to end. For the task that serves the connection.
    pub fn shed_or_wake(&self, waker: &Waker) -> Option<&Shed> {
        // This is called often, and the waker of a task mostly stays the same.
        if !self.0.is_ending() {
            let mut driver = self.0.driver.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *driver {
                Some(known) => known.clone_from(waker),
                None => *driver = Some(waker.clone()),
            }
        }
        self.shed()
    }

    /// Notes that the connection is closed. What it still holds will be released, so it is not a candidate to be ended.
    pub fn close(&self) {
        self.0.end(None);
    }
}

/// Bytes charged to an account while this lives.
#[derive(Debug, Default)]
pub struct Charge {
    /// `None` for a default charge, which charges nothing.
    account: Option<Account>,
    bytes: usize,
}

impl Charge {
    /// Changes the charge to `bytes`.
    pub fn resize(&mut self, bytes: usize) {
        let Some(account) = &self.account else { return };
        if bytes > self.bytes {
            account.add(bytes - self.bytes);
        } else if bytes < self.bytes {
            account.release(self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// Charges `bytes` more.
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

/// Returns `bytes` with `charge` attached: it is dropped with the last reference to them. For answers, which are held until they are sent.
pub fn paid(bytes: Bytes, charge: Charge) -> Bytes {
    if bytes.is_empty() || charge.bytes == 0 {
        bytes
    } else {
        Bytes::from_owner(ChargedBytes { bytes, _charge: charge })
    }
}

struct ChargedBytes {
    bytes: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for ChargedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Decides whether more of one body may be read.
#[derive(Debug)]
pub struct ReadPermit {
    account: Account,
    /// Its number among the waiters. 0 until it waits for the first time.
    number: u64,
    waits: bool,
    /// Bytes of the three budgets at the last check.
    seen: [u64; 3],
}

/// Whether more of a body may be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadDecision {
    /// More may be read now.
    Read,
    /// Nothing may be read now. The waker is woken when this should be checked again.
    Wait,
    /// Nothing may be read any more: the connection has to end.
    End(Shed),
}

impl ReadPermit {
    /// Decides whether to read. With `stays`, the waker stays registered even after [`ReadDecision::Read`].
    pub fn decide(&mut self, waker: &Waker, stays: bool) -> ReadDecision {
        if let Some(shed) = self.account.shed() {
            return ReadDecision::End(shed.clone());
        }
        if !self.is_stopped() && !stays {
            self.stop_waiting();
            return ReadDecision::Read;
        }
        if !self.waits {
            let ledger = &*self.account.0;
            self.seen = [ledger.held(), ledger.peer.budget.used(), ledger.shared.all.used()];
        }
        self.waits = true;
        if self.number == 0 {
            self.number = self.account.0.shared.next_number();
        }
        self.account.0.shared.waiters.join(self.key(), waker);
        // Checked again: bytes that were released before `join` did not wake this waiter.
        if let Some(shed) = self.account.shed() {
            return ReadDecision::End(shed.clone());
        }
        if self.is_stopped() {
            return ReadDecision::Wait;
        }
        if !stays {
            self.stop_waiting();
        }
        ReadDecision::Read
    }

    /// Whether anything may be read from the connection's socket. It may not when the connection has to end, nor while a budget is above its
    /// high mark and the connection holds more than [`LIGHT_BYTES_MAX`].
    pub fn may_read_socket(&mut self, waker: &Waker) -> bool {
        if self.is_socket_readable() {
            self.stop_waiting();
            return true;
        }
        if self.number == 0 {
            self.number = self.account.0.shared.next_number();
        }
        self.waits = true;
        self.account.0.shared.waiters.join(self.key(), waker);
        // Checked again: bytes that were released before `join` did not wake this waiter.
        let may_read = self.is_socket_readable();
        if may_read {
            self.stop_waiting();
        }
        may_read
    }

    fn is_socket_readable(&self) -> bool {
        let ledger = &*self.account.0;
        let budgets = [&ledger.budget, &ledger.peer.budget, &ledger.shared.all];
        let is_within = budgets.iter().all(|budget| budget.used() <= budget.marks.high);
        self.account.shed().is_none() && (is_within || ledger.held() <= LIGHT_BYTES_MAX)
    }

    /// The body was read completely. If this permit was the exempt one, another one may become it.
    pub fn done(&mut self) {
        if self.number == 0 {
            return;
        }
        self.stop_waiting();
        let ledger = &self.account.0;
        let budgets = [&ledger.budget, &ledger.peer.budget, &ledger.shared.all];
        if budgets.map(|budget| budget.finished(self.number)).contains(&true) {
            ledger.shared.waiters.wake_some();
        }
    }

    /// Must be called after each [`limits::STALL_MS`](crate::limits::STALL_MS) of waiting. If none of the budgets changed by
    /// [`MOVED_BYTES_MIN`] since the last call, the largest holder in the budget that it waits for is ended.
    pub fn check_stall(&mut self) {
        let ledger = &*self.account.0;
        let now = [ledger.held(), ledger.peer.budget.used(), ledger.shared.all.used()];
        let before = std::mem::replace(&mut self.seen, now);
        if now.iter().zip(before).all(|(now, before)| now.abs_diff(before) < MOVED_BYTES_MIN) {
            ledger.shared.shed_stalled(ledger);
        }
    }

    fn is_stopped(&mut self) -> bool {
        let ledger = &*self.account.0;
        let held = ledger.held();
        if [&ledger.budget, &ledger.peer.budget, &ledger.shared.all]
            .iter()
            .all(|budget| budget.used() <= budget.marks.low)
        {
            return false;
        }
        if self.number == 0 {
            self.number = ledger.shared.next_number();
        }
        ledger.budget.stops(self.number, held)
            || ledger.peer.budget.stops(self.number, held)
            || ledger.shared.all.stops(self.number, ledger.peer.budget.used())
    }

    fn key(&self) -> Key {
        (self.account.0.number, self.number)
    }

    fn stop_waiting(&mut self) {
        if std::mem::take(&mut self.waits) {
            self.account.0.shared.waiters.leave(self.key());
        }
    }
}

impl Drop for ReadPermit {
    fn drop(&mut self) {
        self.done();
    }
}
