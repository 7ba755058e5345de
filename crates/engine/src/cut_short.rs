//! Of which sequences was a request cut short, so that their states lack a step?
//!
//! A request was cut short if it was given to an instance, was told to end early, and failed. This is reported to the scheduler before the instance
//! is given back, so no later request of the sequence runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{MutexGuard, PoisonError};

use nerite_locks::Mutex;

/// The numbers of such sequences that were not yet reported to the scheduler.
#[derive(Default)]
pub(crate) struct CutShort {
    /// Whether there are any, so that most runs take no lock.
    has_any: AtomicBool,
    numbers: Mutex<Vec<u64>>,
}

impl CutShort {
    /// A request of the sequence whose state has this number was cut short.
    pub fn add(&self, number: u64) {
        let mut numbers = self.lock();
        numbers.push(number);
        self.has_any.store(true, Ordering::Release);
    }

    /// Takes the numbers.
    pub fn take(&self) -> Vec<u64> {
        if !self.has_any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut numbers = self.lock();
        self.has_any.store(false, Ordering::Release);
        std::mem::take(&mut numbers)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u64>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
