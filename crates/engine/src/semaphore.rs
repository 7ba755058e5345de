//! How many models may load at the same time, and when does a load wait for another?

use std::collections::HashSet;
use std::sync::{Condvar, PoisonError};

use nerite_locks::Mutex;

/// A counting semaphore.
pub struct Semaphore {
    free: Mutex<usize>,
    left: Condvar,
}

/// A permit. Drop gives it back.
pub struct Turn<'t>(&'t Semaphore);

impl Semaphore {
    /// A semaphore with `places` permits, at least one.
    pub fn new(places: usize) -> Semaphore {
        Semaphore { free: Mutex::new(places.max(1)), left: Condvar::new() }
    }

    /// Waits for a permit.
    pub fn enter(&self) -> Turn<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            free = self.left.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= 1;
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.left.notify_one();
    }
}

/// A lock for each model: two loads of one model run one after the other, as in Triton.
#[derive(Default)]
pub struct OnePerModel {
    busy: Mutex<HashSet<String>>,
    left: Condvar,
}

/// The lock of a model. Drop releases it.
pub struct Claim<'m> {
    of: &'m OnePerModel,
    model: String,
}

impl OnePerModel {
    /// Waits until no other operation on this model runs.
    pub fn claim(&self, model: &str) -> Claim<'_> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        while busy.contains(model) {
            busy = self.left.wait(busy).unwrap_or_else(PoisonError::into_inner);
        }
        busy.insert(model.to_owned());
        Claim { of: self, model: model.to_owned() }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.of.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.model);
        self.of.left.notify_all();
    }
}
