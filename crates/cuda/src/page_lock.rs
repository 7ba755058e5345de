//! How is existing memory page-locked?

use std::ptr::NonNull;
use std::sync::Arc;

use crate::calls::name;
use crate::driver::Driver;
use crate::error::CudaError;
use crate::lock_budget::LockError;
use crate::pinned::PORTABLE;

/// Memory of another owner that is page-locked until this value is dropped.
pub struct PageLock {
    driver: Arc<Driver>,
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a lock belongs to the process, not to a thread; the fields never change.
unsafe impl Send for PageLock {}
// SAFETY: as above; a shared PageLock has no methods that change anything.
unsafe impl Sync for PageLock {}

impl PageLock {
    /// Locks `len` bytes at `at` for the devices of all contexts. Allocates the missing pages of a sparse object.
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
