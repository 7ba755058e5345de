//! How is device memory allocated, and lent to other processes?

use std::ptr::NonNull;
use std::sync::Arc;

use nerite_memory::{Access, Buffer, DeviceBytes, DeviceCopier, Extent, MemoryOwner, Place, Slot, Vacant};

use crate::calls::{RawIpcHandle, address, name, pointer};
use crate::device::Device;
use crate::error::CudaError;
use crate::ipc::{IPC_HANDLE_BYTES, IpcHandle};

/// Device memory of this process, freed when dropped. Its first content is undefined.
pub struct DeviceMemory {
    device: Device,
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a device address belongs to the process, not to a thread; the fields never change.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above. A shared DeviceMemory only returns its address and copies bytes, which the driver allows on any thread.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// Allocates `len` bytes on `device`.
    pub fn allocate(device: &Device, len: usize) -> Result<Arc<DeviceMemory>, CudaError> {
        let current = device.enter()?;
        let mut at = 0;
        // SAFETY: `at` is a place for one address; the context is current.
        let code = unsafe { (current.calls().allocate)(&raw mut at, len) };
        current.calls().check(name::allocate, code)?;
        let at = NonNull::new(pointer(at)).expect("the driver allocates no memory at address 0");
        Ok(Arc::new(DeviceMemory { device: device.clone(), at, len }))
    }

    /// The handle by which another process opens it.
    pub fn ipc_handle(&self) -> Result<IpcHandle, CudaError> {
        let current = self.device.enter()?;
        let mut handle = RawIpcHandle([0; IPC_HANDLE_BYTES]);
        // SAFETY: `handle` is a place for one handle, the memory is allocated; the context is current.
        let code = unsafe { (current.calls().ipc_get)(&raw mut handle, address(self.at.as_ptr())) };
        current.calls().check(name::ipc_get, code)?;
        Ok(IpcHandle(handle.0))
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Part of it, to be read.
    ///
    /// # Panics
    /// If the extent was made for a longer thing.
    pub fn buffer(self: &Arc<Self>, extent: Extent) -> Buffer {
        let (ptr, place) = (self.part(extent), Place::Device(self.device.ordinal()));
        // SAFETY: the extent ends within the allocation (`part`), which the Arc handed over keeps; device memory has no
        // uninitialised state; Shared claims nothing about other writers.
        unsafe { Buffer::from_raw(ptr, extent.len(), place, Access::Shared, Arc::clone(self) as _) }
    }

    /// Part of it, to be written.
    ///
    /// # Panics
    /// If the extent was made for a longer thing.
    pub fn slot(self: &Arc<Self>, extent: Extent) -> Slot<Vacant> {
        let (ptr, place) = (self.part(extent), Place::Device(self.device.ordinal()));
        // SAFETY: as in `buffer`, and the memory is writable.
        unsafe { Slot::from_raw(ptr, extent.len(), place, Access::Shared, Arc::clone(self) as _) }
    }

    fn part(&self, extent: Extent) -> NonNull<u8> {
        assert!(extent.end() <= self.len, "extent up to {} of {}", extent.end(), self.len);
        // SAFETY: the extent ends within the allocation, by the assertion.
        unsafe { self.at.add(extent.offset()) }
    }
}

impl MemoryOwner for DeviceMemory {
    fn copier(&self) -> Option<&dyn DeviceCopier> {
        Some(&self.device)
    }
}

// SAFETY: `allocate` allocated `len` bytes at `at` on `device`, which copies them; the fields never change, and only Drop frees the memory.
unsafe impl DeviceBytes for DeviceMemory {
    fn at(&self) -> NonNull<u8> {
        self.at
    }

    fn len(&self) -> usize {
        self.len
    }

    fn ordinal(&self) -> u32 {
        self.device.ordinal()
    }

    fn copier(&self) -> &dyn DeviceCopier {
        &self.device
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let Ok(current) = self.device.enter() else { return };
        // SAFETY: `allocate` allocated it, and whoever points into it holds us: we are its last owner. Should it fail, the
        // context is lost and the memory with it.
        let _ = unsafe { (current.calls().free)(address(self.at.as_ptr())) };
    }
}

impl std::fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceMemory({} bytes on device {})", self.len, self.device.ordinal())
    }
}
