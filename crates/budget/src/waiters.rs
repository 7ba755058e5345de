//! Who is to be told when there may be room again?

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;

/// Those who are not read on at present.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// Asked first, so that whoever releases while nobody waits pays a load.
    count: AtomicUsize,
    wakers: Mutex<BTreeMap<u64, Waker>>,
}

impl Waiters {
    /// Has `waker` told under this number, until [`Waiters::leave`].
    pub(crate) fn join(&self, number: u64, waker: &Waker) {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        wakers.entry(number).and_modify(|known| known.clone_from(waker)).or_insert_with(|| waker.clone());
        self.count.store(wakers.len(), Ordering::SeqCst);
    }

    /// Forgets it.
    pub(crate) fn leave(&self, number: u64) {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        wakers.remove(&number);
        self.count.store(wakers.len(), Ordering::SeqCst);
    }

    /// Tells everybody to look again.
    pub(crate) fn wake(&self) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let wakers: Vec<_> = self.wakers.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        wakers.into_iter().for_each(Waker::wake);
    }
}
