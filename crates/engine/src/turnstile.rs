//! How many models may load at the same time?

use std::sync::{Condvar, Mutex, PoisonError};

/// Lets so many in at a time.
pub struct Turnstile {
    free: Mutex<usize>,
    left: Condvar,
}

/// A place inside; given back by Drop.
pub struct Turn<'t>(&'t Turnstile);

impl Turnstile {
    /// Room for `places`, at least one.
    pub fn new(places: usize) -> Turnstile {
        Turnstile { free: Mutex::new(places.max(1)), left: Condvar::new() }
    }

    /// Waits for a place.
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
