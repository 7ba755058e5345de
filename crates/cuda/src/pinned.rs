//! How is memory allocated that the system never moves, so that a device can read it at full speed?

use std::ptr::NonNull;
use std::sync::Arc;

use nerite_memory::MemoryOwner;

use crate::calls::name;
use crate::driver::Driver;
use crate::error::CudaError;

/// A flag of both functions that page-lock memory: the lock is valid in the contexts of all devices.
pub(crate) const PORTABLE: u32 = 1;

/// Page-locked memory of this process, zeros at first, freed when dropped. Making and freeing it is slow: see
/// [`crate::PinnedPool`].
pub struct PinnedMemory {
    driver: Arc<Driver>,
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to the process, not to a thread; the fields never change.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above; a shared PinnedMemory only returns its address.
unsafe impl Sync for PinnedMemory {}
impl MemoryOwner for PinnedMemory {}

impl PinnedMemory {
    /// Allocates `len` bytes that all devices can access.
    pub fn allocate(driver: &Arc<Driver>, len: usize) -> Result<PinnedMemory, CudaError> {
        let device = driver.any();
        let current = device.enter()?;
        let mut at = std::ptr::null_mut();
        // SAFETY: `at` is a place for one pointer; the context is current.
        let code = unsafe { (current.calls().host_allocate)(&raw mut at, len, PORTABLE) };
        current.calls().check(name::host_allocate, code)?;
        let at = NonNull::new(at.cast::<u8>()).expect("the driver allocates no memory at address 0");
        // The driver does not say what the memory holds, and Slots hold initialised bytes.
        // SAFETY: `len` writable bytes, just allocated.
        unsafe { at.as_ptr().write_bytes(0, len) };
        Ok(PinnedMemory { driver: Arc::clone(driver), at, len })
    }

    /// First byte, aligned to a page.
    pub fn at(&self) -> NonNull<u8> {
        self.at
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let device = self.driver.any();
        let Ok(current) = device.enter() else { return };
        // SAFETY: `allocate` allocated it, and whoever points into it holds us: we are its last owner. Should it fail, the
        // memory stays locked and unused.
        let _ = unsafe { (current.calls().host_free)(self.at.as_ptr().cast()) };
    }
}

impl std::fmt::Debug for PinnedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PinnedMemory({} bytes)", self.len)
    }
}
