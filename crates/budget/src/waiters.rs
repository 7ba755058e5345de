//! Which bodies are woken when a budget may have room again?

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use nerite_locks::Mutex;

use crate::limits::WOKEN_AT_ONCE_MAX;

/// The number of a waiter's connection, and its own.
pub(crate) type Key = (u64, u64);

/// The wakers of bodies that wait.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// How many wait. Releasing bytes costs only this load while nothing waits.
    count: AtomicUsize,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    wakers: BTreeMap<Key, Waker>,
    /// The waiter that was woken last. The next ones are those after it.
    last: Key,
}

impl Waiters {
    /// Registers `waker` under this key, until [`Waiters::leave`].
    pub(crate) fn join(&self, key: Key, waker: &Waker) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.wakers.entry(key).and_modify(|known| known.clone_from(waker)).or_insert_with(|| waker.clone());
        self.count.store(waiting.wakers.len(), Ordering::SeqCst);
    }

    /// Removes the waker with this key.
    pub(crate) fn leave(&self, key: Key) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.wakers.remove(&key);
        self.count.store(waiting.wakers.len(), Ordering::SeqCst);
    }

    /// Wakes the waiters of one connection.
    pub(crate) fn wake_of(&self, connection: u64) {
        self.wake(|waiting| {
            let own = waiting.wakers.range((connection, 0)..=(connection, u64::MAX));
            own.map(|(_, waker)| waker.clone()).collect()
        });
    }

    /// Wakes up to [`WOKEN_AT_ONCE_MAX`] waiters, so that they check again. The next call wakes the others, unless they check by themselves first.
    pub(crate) fn wake_some(&self) {
        self.wake(|waiting| {
            let after = waiting.wakers.range((Excluded(waiting.last), Unbounded));
            let woken: Vec<_> =
                after.chain(&waiting.wakers).take(waiting.wakers.len().min(WOKEN_AT_ONCE_MAX)).collect();
            let last = woken.last().map(|(key, _)| **key);
            let woken = woken.into_iter().map(|(_, waker)| waker.clone()).collect();
            waiting.last = last.unwrap_or(waiting.last);
            woken
        });
    }

    fn wake(&self, choose: impl FnOnce(&mut Waiting) -> Vec<Waker>) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let woken = choose(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        woken.into_iter().for_each(Waker::wake);
    }
}
