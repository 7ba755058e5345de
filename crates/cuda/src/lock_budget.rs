//! How much of the host's memory may be page-locked?

use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

use crate::error::CudaError;
use crate::limits::LOCKED_SHARE;

/// Why memory was not locked. It can still be used, but transfers are slower.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LockError {
    /// The driver refuses.
    #[error("{0}")]
    Driver(#[from] CudaError),
    /// The limit of locked bytes would be exceeded.
    #[error("{locked} bytes are page-locked, {len} more would exceed {max}, a quarter of the host's memory")]
    Full {
        /// Bytes locked now.
        locked: u64,
        /// Bytes asked for.
        len: u64,
        /// Bytes that may be locked.
        max: u64,
    },
}

/// Bytes that are locked, and how many may be.
pub(crate) struct Budget {
    locked: AtomicU64,
    max: u64,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { locked: AtomicU64::new(0), max: nerite_memory::allowed_bytes() / LOCKED_SHARE }
    }
}

impl Budget {
    pub(crate) fn take(&self, len: u64) -> Result<(), LockError> {
        let more = |locked: u64| locked.checked_add(len).filter(|sum| *sum <= self.max);
        let taken = self.locked.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.map(drop).map_err(|locked| LockError::Full { locked, len, max: self.max })
    }

    pub(crate) fn give_back(&self, len: u64) {
        self.locked.fetch_sub(len, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_locked_than_may_be() {
        let budget = Budget { locked: AtomicU64::new(0), max: 100 };
        assert_eq!(budget.take(60), Ok(()));
        assert_eq!(budget.take(41), Err(LockError::Full { locked: 60, len: 41, max: 100 }));
        assert!(budget.take(u64::MAX).is_err());
        budget.give_back(60);
        assert_eq!(budget.take(100), Ok(()));
    }
}
