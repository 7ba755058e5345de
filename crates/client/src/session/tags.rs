//! Which leases have responses over other protocols named, and to which requests did they belong?

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Leases that responses named, each with the tag of its request, until they are returned. The lock is held while packets about leases are sent. An
/// abandoned lease must not be returned a second time, because it may be lent again in between. A returned lease may be named again at once.
#[derive(Default)]
pub(super) struct Tags {
    last: AtomicU64,
    held: Mutex<HashMap<String, u64>>,
}

impl Tags {
    /// A tag that no request of the session has had.
    pub(super) fn next(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Notes that a response to a request of this tag has named the lease.
    pub(super) fn hold(&self, name: &str, tag: u64) {
        self.lock().insert(name.to_owned(), tag);
    }

    /// The leases by name, each with its tag.
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
