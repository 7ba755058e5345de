//! How is device memory of another process opened?

use std::ffi::c_int;
use std::ptr::NonNull;

use nerite_memory::{DeviceCopier, MemoryOwner};

use crate::calls::{Address, RawIpcHandle, address, name, pointer};
use crate::context::Current;
use crate::device::Device;
use crate::error::{CudaError, OpenError};

/// Bytes of a `cudaIpcMemHandle_t`.
pub const IPC_HANDLE_BYTES: usize = 64;

/// The handle that one process sends to another, which opens an allocation with it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IpcHandle(pub [u8; IPC_HANDLE_BYTES]);

impl std::fmt::Debug for IpcHandle {
    /// Omits the bytes: anyone who knows them can open the memory.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IpcHandle")
    }
}

/// An allocation of another process, open in this one until dropped. The driver counts openings: several of the same handle
/// share an address and are closed one by one.
pub struct IpcMemory {
    device: Device,
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a device address belongs to the process, not to a thread; the fields never change.
unsafe impl Send for IpcMemory {}
// SAFETY: as above. A shared IpcMemory only returns its address and copies bytes, which the driver allows on any thread.
unsafe impl Sync for IpcMemory {}

impl IpcMemory {
    /// Opens the allocation behind `handle` on `device` and asks the driver how much lies from the opened address to its end.
    pub fn open(device: &Device, handle: &IpcHandle) -> Result<IpcMemory, OpenError> {
        const LAZY_ENABLE_PEER_ACCESS: u32 = 1;
        let current = device.enter().map_err(OpenError::Handle)?;
        let calls = current.calls();
        let mut at: Address = 0;
        // SAFETY: `at` is a place for one address; any 64 bytes may be asked about; the context is current.
        let code = unsafe { (calls.ipc_open)(&raw mut at, RawIpcHandle(handle.0), LAZY_ENABLE_PEER_ACCESS) };
        calls.check(name::ipc_open, code).map_err(OpenError::Handle)?;
        let opened = NonNull::new(pointer(at)).expect("the driver opens no memory at address 0");
        // From here on Drop closes the memory, even if a later step fails.
        let mut memory = IpcMemory { device: device.clone(), at: opened, len: 0 };
        if let Some(actual) = ordinal_of(&current, at).filter(|actual| *actual != device.ordinal()) {
            return Err(OpenError::Elsewhere { requested: device.ordinal(), actual });
        }
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: both are places for one number, `at` is an address just opened; the context is current.
        let code = unsafe { (calls.address_range)(&raw mut base, &raw mut bytes, at) };
        calls.check(name::address_range, code).map_err(OpenError::Range)?;
        memory.len = bytes.saturating_sub(at.saturating_sub(base) as usize);
        Ok(memory)
    }

    /// First byte, an address of the device.
    pub fn at(&self) -> NonNull<u8> {
        self.at
    }

    /// Bytes from there to the end of the allocation.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device it lies on.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl MemoryOwner for IpcMemory {
    fn copier(&self) -> Option<&dyn DeviceCopier> {
        Some(&self.device)
    }
}

impl Drop for IpcMemory {
    fn drop(&mut self) {
        if let Err(error) = close(&self.device, self.at) {
            // The last user has gone, so the error can only be logged.
            log::warn!("failed to close CUDA IPC handle: {error}");
        }
    }
}

fn close(device: &Device, at: NonNull<u8>) -> Result<(), CudaError> {
    let current = device.enter()?;
    let calls = current.calls();
    // SAFETY: `open` opened it, once for this value, and whoever points into it holds us: we are its last owner.
    calls.check(name::ipc_close, unsafe { (calls.ipc_close)(address(at.as_ptr())) })
}

/// The device that an address is on. `None` if the driver does not say; the address is accepted then.
fn ordinal_of(current: &Current<'_>, at: Address) -> Option<u32> {
    const DEVICE_ORDINAL: c_int = 9;
    let mut ordinal: c_int = -1;
    // SAFETY: this attribute is one number, which `ordinal` is a place for; the context is current.
    let code = unsafe { (current.calls().pointer_attribute)((&raw mut ordinal).cast(), DEVICE_ORDINAL, at) };
    current.calls().check(name::pointer_attribute, code).ok()?;
    u32::try_from(ordinal).ok()
}

impl std::fmt::Debug for IpcMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IpcMemory({} bytes on device {})", self.len, self.device.ordinal())
    }
}
