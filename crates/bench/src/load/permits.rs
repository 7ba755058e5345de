//! May the next request begin?

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::lock;

/// At first no request may begin.
#[derive(Debug, Default)]
pub(super) struct Permits {
    state: AtomicU8,
    /// Requests that may begin while they are counted.
    left: Mutex<u64>,
    changed: Condvar,
}

/// Each request needs a permit.
const COUNTS: u8 = 0;
const OPEN: u8 = 1;
const CLOSED: u8 = 2;

impl Permits {
    pub(super) fn allow(&self, requests: u64) {
        *lock(&self.left) += requests;
        self.changed.notify_all();
    }

    pub(super) fn allow_all(&self) {
        self.set(OPEN);
    }

    /// No further request begins.
    pub(super) fn close(&self) {
        self.set(CLOSED);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Relaxed) == CLOSED
    }

    /// Waits until one more request may begin. `false`: none may any more.
    pub(super) fn take(&self) -> bool {
        if self.state.load(Ordering::Relaxed) == OPEN {
            return true;
        }
        let mut left = lock(&self.left);
        loop {
            match self.state.load(Ordering::Relaxed) {
                OPEN => return true,
                CLOSED => return false,
                COUNTS if *left > 0 => {
                    *left -= 1;
                    return true;
                }
                _ => left = self.changed.wait(left).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn set(&self, state: u8) {
        // Under the lock, so that no worker looks before and waits after.
        let left = lock(&self.left);
        self.state.store(state, Ordering::Relaxed);
        drop(left);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_requests_begin_as_are_allowed() {
        let permits = Permits::default();
        permits.allow(2);
        assert!(permits.take() && permits.take());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| permits.take());
            permits.close();
            assert!(!waiting.join().expect("no panic"));
        });
        let permits = Permits::default();
        permits.allow_all();
        assert!((0..1000).all(|_| permits.take()));
    }
}
