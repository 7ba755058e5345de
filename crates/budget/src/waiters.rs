//! Which bodies are woken when a budget may have room again?

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use nerite_locks::Mutex;

/// The wakers of bodies that wait.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// How many wait. Releasing bytes costs only this load while nothing waits.
    count: AtomicUsize,
    wakers: Mutex<BTreeMap<u64, Waker>>,
}

impl Waiters {
    /// Registers `waker` under this number, until [`Waiters::leave`].
    pub(crate) fn join(&self, number: u64, waker: &Waker) {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        wakers.entry(number).and_modify(|known| known.clone_from(waker)).or_insert_with(|| waker.clone());
        self.count.store(wakers.len(), Ordering::SeqCst);
    }

    /// Removes the waker with this number.
    pub(crate) fn leave(&self, number: u64) {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        wakers.remove(&number);
        self.count.store(wakers.len(), Ordering::SeqCst);
    }

    /// Wakes all, so that they check again.
    pub(crate) fn wake(&self) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let wakers: Vec<_> = self.wakers.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        wakers.into_iter().for_each(Waker::wake);
    }
}
