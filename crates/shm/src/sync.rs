//! Which locks, counters and snapshots do the tables of regions and leases use?
//!
//! Those of the system. `tests/interleavings` builds this crate with `shuttle`'s in their place, which hand over to another
//! thread wherever one could be interrupted, in thousands of different orders. What runs in a signal handler ([`crate::guard`])
//! is no part of that.

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

/// A value that readers take as it is, without waiting, while a writer swaps it for another.
pub(crate) struct Snapshot<T>(ArcSwap<T>);

impl<T> Snapshot<T> {
    pub(crate) fn new(value: T) -> Snapshot<T> {
        Snapshot(ArcSwap::from_pointee(value))
    }

    /// What it is now, for a short look.
    pub(crate) fn load(&self) -> Guard<Arc<T>> {
        let now = self.0.load();
        turn();
        now
    }

    /// What it is now, to keep.
    pub(crate) fn load_full(&self) -> Arc<T> {
        let now = self.0.load_full();
        turn();
        now
    }

    pub(crate) fn store(&self, value: Arc<T>) {
        turn();
        self.0.store(value);
        turn();
    }
}

/// Another thread may run here.
fn turn() {
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
}
