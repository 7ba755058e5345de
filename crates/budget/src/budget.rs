//! How full is a budget?

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::limits::LIGHT_BYTES_MAX;
use crate::marks::{Marks, is_stopped};

/// A peer with an open account.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) number: u64,
    pub(crate) name: String,
    pub(crate) budget: Budget,
}

/// A budget, and how much of it is used by all holders together.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) marks: Marks,
    /// Bytes. Threads update it in any order, so it may be below zero for a moment.
    used: AtomicI64,
    /// Bytes of `used` that are held by connections that are being ended.
    leaving: AtomicI64,
    /// How many holders have more than [`LIGHT_BYTES_MAX`].
    heavy: AtomicI64,
    /// The number of the permit that may read above the low mark. 0 if there is none.
    exempt: AtomicU64,
}

impl Budget {
    pub(crate) fn new(marks: Marks) -> Budget {
        Budget {
            marks,
            used: AtomicI64::new(0),
            leaving: AtomicI64::new(0),
            heavy: AtomicI64::new(0),
            exempt: AtomicU64::new(0),
        }
    }

    pub(crate) fn used(&self) -> u64 {
        u64::try_from(self.used.load(Ordering::SeqCst)).unwrap_or_default()
    }

    /// Bytes used by holders that are not being ended.
    pub(crate) fn staying(&self) -> u64 {
        let leaving = self.leaving.load(Ordering::SeqCst);
        u64::try_from(self.used.load(Ordering::SeqCst) - leaving).unwrap_or_default()
    }

    /// A holder that is being ended has `now` bytes instead of `before`.
    pub(crate) fn update_leaving(&self, before: u64, now: u64) {
        self.leaving.fetch_add(now as i64 - before as i64, Ordering::SeqCst);
    }

    /// A holder has `now` bytes instead of `before`. Returns the budget's bytes before and after.
    pub(crate) fn update(&self, before: u64, now: u64) -> (u64, u64) {
        let change = now as i64 - before as i64;
        let then = self.used.fetch_add(change, Ordering::SeqCst);
        let whole = |bytes| u64::try_from(bytes).unwrap_or_default();
        (whole(then), whole(then + change))
    }

    /// Counts a holder that has `now` bytes instead of `before`, if it became heavy or light. True if it became light.
    pub(crate) fn count_heavy(&self, before: u64, now: u64) -> bool {
        let change = i64::from(now > LIGHT_BYTES_MAX) - i64::from(before > LIGHT_BYTES_MAX);
        if change != 0 {
            self.heavy.fetch_add(change, Ordering::SeqCst);
        }
        change < 0
    }

    /// Whether `read_permit` must wait. Its connection or peer holds `held` bytes of this budget. Above the high mark no permit is exempt, because
    /// the connections that are being ended must release their bytes first.
    pub(crate) fn stops(&self, read_permit: u64, held: u64) -> bool {
        let heavy = u64::try_from(self.heavy.load(Ordering::SeqCst)).unwrap_or_default();
        let used = self.used();
        is_stopped(self.marks, used, held, heavy) && (used > self.marks.high || !self.is_exempt(read_permit))
    }

    /// Whether `read_permit` is the exempt one, or becomes it because there was none.
    fn is_exempt(&self, read_permit: u64) -> bool {
        match self.exempt.compare_exchange(0, read_permit, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => true,
            Err(other) => other == read_permit,
        }
    }

    /// `read_permit` has read its body. True if it was the exempt one.
    pub(crate) fn finished(&self, read_permit: u64) -> bool {
        self.exempt.load(Ordering::SeqCst) == read_permit
            && self.exempt.compare_exchange(read_permit, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}
