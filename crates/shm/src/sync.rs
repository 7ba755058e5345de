//! Which locks, counters and snapshots do the tables of regions and leases use?
//! The types of the standard library. `tests/interleavings` builds this crate with the types of `shuttle` instead, which switch to another thread wherever a
//! thread could be interrupted, in thousands of different orders. Code in a signal handler ([`crate::guard`]) is not included.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

#[cfg(not(shuttle))]
pub(crate) use nerite_locks::{Mutex, RwLock};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, RwLock};
#[cfg(not(shuttle))]
pub(crate) use std::sync::MutexGuard;
#[cfg(not(shuttle))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64};

/// A value that is read without waiting, and replaced as a whole.
pub(crate) struct Snapshot<T>(ArcSwap<T>);

impl<T> Snapshot<T> {
    pub(crate) fn new(value: T) -> Snapshot<T> {
        Snapshot(ArcSwap::from_pointee(value))
    }

    /// The current value, borrowed briefly.
    pub(crate) fn load(&self) -> Guard<Arc<T>> {
        let now = self.0.load();
        yield_point();
        now
    }

    /// The current value, to keep.
    pub(crate) fn load_full(&self) -> Arc<T> {
        let now = self.0.load_full();
        yield_point();
        now
    }

    pub(crate) fn store(&self, value: Arc<T>) {
        yield_point();
        self.0.store(value);
        yield_point();
    }
}

/// Lets another thread run here, under shuttle.
fn yield_point() {
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
}
