//! How full is a budget that several hold parts of?

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::limits::LIGHT_BYTES_MAX;
use crate::marks::{Marks, is_stopped};

/// A peer with an open account.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) number: u64,
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
