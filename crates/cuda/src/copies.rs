//! How are bytes copied between host and device, and when is a copy complete?
//!
//! Every copy is put on a stream and waited for. The plain calls would return before a copy from pageable memory has reached the device, and would
//! wait for all other work on the default stream.

use std::sync::Arc;

use nerite_memory::{DeviceBytes, DeviceCopier};

use crate::calls::{Calls, Code, Handle, address, name};
use crate::device::Device;
use crate::error::CudaError;
use crate::owned::DeviceMemory;

impl Device {
    /// Puts one copy on a stream and waits for it.
    fn copy(&self, call: &'static str, start: impl FnOnce(&Calls, Handle) -> Code) -> Result<(), CudaError> {
        let current = self.enter()?;
        let lane = current.lane()?;
        current.calls().check(call, start(current.calls(), lane.handle()))?;
        lane.wait()
    }
}

/// For memory of this device, whoever allocated it. The driver may report an error of earlier work by other code here. Then every further call of
/// this process to the device fails.
impl DeviceCopier for Device {
    unsafe fn to_host(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String> {
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the caller promised both ranges; the copy is done when `copy` returns, and the context is current.
        let start = |calls: &Calls, stream| unsafe { (calls.to_host)(to.cast(), address(from), len, stream) };
        self.copy(name::to_host, start).map_err(|error| error.to_string())
    }

    unsafe fn to_device(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String> {
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the caller promised both ranges; the copy is done when `copy` returns, and the context is current.
        let start = |calls: &Calls, stream| unsafe { (calls.to_device)(address(to), from.cast(), len, stream) };
        self.copy(name::to_device, start).map_err(|error| error.to_string())
    }

    unsafe fn within(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String> {
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the caller promised both ranges; the copy is done when `copy` returns, and the context is current.
        let start = |calls: &Calls, stream| unsafe { (calls.within)(address(to), address(from), len, stream) };
        self.copy(name::within, start).map_err(|error| error.to_string())
    }

    fn allocate(&self, len: usize) -> Result<Arc<dyn DeviceBytes>, String> {
        Ok(DeviceMemory::allocate(self, len).map_err(|error| error.to_string())?)
    }
}
