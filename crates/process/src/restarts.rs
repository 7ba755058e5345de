//! How often were the processes of a model version started anew?

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the starts after the end of a process, of all instances of one model version. Failed starts count too.
#[derive(Debug, Default)]
pub struct Restarts(AtomicU64);

impl Restarts {
    /// The number of these starts.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
