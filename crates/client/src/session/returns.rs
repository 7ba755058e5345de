//! When are leases that are no longer used returned to the server?

use std::sync::{Mutex, PoisonError};

use super::limits::{RETURNS_HELD_BYTES_MAX, RETURNS_HELD_MAX};

/// Leases that are to be returned. A few small leases wait for the next message, so that returning them does not wake a thread on either side.
#[derive(Default)]
pub(super) struct Returns(Mutex<Held>);

#[derive(Default)]
struct Held {
    names: Vec<String>,
    bytes: usize,
}

impl Returns {
    /// Adds a lease. Returns all waiting leases if they should be sent now.
    pub(super) fn add(&self, name: String, bytes: usize) -> Option<Vec<String>> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.names.push(name);
        held.bytes = held.bytes.saturating_add(bytes);
        let enough = held.names.len() > RETURNS_HELD_MAX || held.bytes > RETURNS_HELD_BYTES_MAX;
        enough.then(|| std::mem::take(&mut *held).names)
    }

    /// Puts back leases that could not be sent.
    pub(super) fn put_back(&self, names: Vec<String>) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.names.extend(names);
    }

    /// Takes all waiting leases, for a message that is about to be sent.
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[usize], sent: usize, held: usize) {
        let returns = Returns::default();
        let now: usize =
            bytes.iter().filter_map(|&bytes| returns.add("lease".to_owned(), bytes)).map(|names| names.len()).sum();
        assert_eq!((now, returns.take().len()), (sent, held), "{bytes:?}");
    }

    #[test]
    fn few_and_small_ones_wait_and_others_do_not() {
        check(&[4096], 0, 1);
        check(&[4096; 8], 0, 8);
        check(&[4096; 9], 9, 0);
        check(&[4096, 2 << 20, 4096], 2, 1);
        check(&[usize::MAX, usize::MAX], 2, 0);
    }
}
