//! How is memory locked that is there already, and how much of it?

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

use crate::calls::name;
use crate::driver::Driver;
use crate::error::CudaError;
use crate::limits::LOCKED_SHARE;
use crate::pinned::PORTABLE;

/// Memory of somebody else's that is page-locked until this value is dropped.
pub struct PageLock {
    driver: Arc<Driver>,
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a lock belongs to the process, not to a thread; the fields never change.
unsafe impl Send for PageLock {}
// SAFETY: as above; a shared PageLock can do nothing.
unsafe impl Sync for PageLock {}

/// Why memory was not locked. It can be used all the same: transfers are slower.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LockError {
    /// The driver refuses.
    #[error("{0}")]
    Driver(#[from] CudaError),
    /// Enough is locked already.
    #[error("{locked} bytes are page-locked, {len} more would exceed {max}, a quarter of the host's memory")]
    Full {
        /// Bytes locked now.
        locked: u64,
        /// Bytes asked for.
        len: u64,
        /// Bytes that may be.
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
    fn take(&self, len: u64) -> Result<(), LockError> {
        let more = |locked: u64| locked.checked_add(len).filter(|sum| *sum <= self.max);
        let taken = self.locked.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.map(drop).map_err(|locked| LockError::Full { locked, len, max: self.max })
    }

    fn give_back(&self, len: u64) {
        self.locked.fetch_sub(len, Ordering::AcqRel);
    }
}

impl PageLock {
    /// Locks `len` bytes at `at` for the devices of all contexts. Gives a sparse object its pages.
    ///
    /// # Safety
    /// The range is mapped, and stays so until the PageLock is dropped.
    pub unsafe fn new(driver: &Arc<Driver>, at: NonNull<u8>, len: usize) -> Result<PageLock, LockError> {
        driver.budget.take(len as u64)?;
        // SAFETY: the caller's promise, passed on.
        let locked = unsafe { lock(driver, at, len) };
        if let Err(error) = locked {
            driver.budget.give_back(len as u64);
            return Err(error.into());
        }
        Ok(PageLock { driver: Arc::clone(driver), at, len })
    }
}

/// # Safety
/// The range is mapped, and stays so until it is unlocked.
unsafe fn lock(driver: &Arc<Driver>, at: NonNull<u8>, len: usize) -> Result<(), CudaError> {
    let device = driver.any();
    let current = device.enter()?;
    // SAFETY: a mapped range, as the caller promised; the context is current.
    let code = unsafe { (current.calls().host_lock)(at.as_ptr().cast(), len, PORTABLE) };
    current.calls().check(name::host_lock, code)
}

impl Drop for PageLock {
    fn drop(&mut self) {
        let device = self.driver.any();
        if let Ok(current) = device.enter() {
            // SAFETY: `new` locked it, once, and nobody else unlocks it.
            let code = unsafe { (current.calls().host_unlock)(self.at.as_ptr().cast()) };
            if let Err(error) = current.calls().check(name::host_unlock, code) {
                log::warn!("cannot unlock {} bytes: {error}", self.len);
            }
        }
        self.driver.budget.give_back(self.len as u64);
    }
}

impl std::fmt::Debug for PageLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageLock({} bytes)", self.len)
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
