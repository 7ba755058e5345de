//! How does memory of an accelerator become a region?

use std::ptr::NonNull;
use std::sync::Arc;

use nerite_cuda::{Device, Driver, IpcHandle, IpcMemory, OpenError};
use nerite_memory::{DeviceCopier, IpcSource, MemoryOwner, Place};

use crate::error::ShmError;
use crate::loss::ObjectNow;
use crate::source::Mapping;

/// Bytes of a `cudaIpcMemHandle_t`.
pub const CUDA_HANDLE_BYTES: usize = nerite_cuda::IPC_HANDLE_BYTES;

/// An IPC handle of the right length. Only the driver can tell whether it is valid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CudaHandle(IpcHandle);

impl CudaHandle {
    /// Checks the length. Triton does so only over HTTP, and reads past a short handle over gRPC.
    pub fn new(raw: &[u8]) -> Result<CudaHandle, ShmError> {
        let bytes = raw.try_into().map_err(|_| ShmError::HandleLength { bytes: raw.len() })?;
        Ok(CudaHandle(IpcHandle(bytes)))
    }

    /// The bytes, for the driver.
    pub fn as_bytes(&self) -> &[u8; CUDA_HANDLE_BYTES] {
        &self.0.0
    }
}

impl std::fmt::Debug for CudaHandle {
    /// Omits the bytes: anyone who knows them can open the memory.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CudaHandle")
    }
}

/// The first `len` bytes of an allocation of another process. Closed when dropped.
pub(crate) struct CudaMapping {
    memory: IpcMemory,
    len: usize,
    handle: CudaHandle,
}

impl CudaMapping {
    /// Opens the first `byte_size` bytes of `handle` on the device with that number, for the region `name`. Nothing remains open on failure: the memory is
    /// closed when it is dropped.
    pub(crate) fn open(
        driver: &Arc<Driver>,
        name: &str,
        handle: CudaHandle,
        device_id: i64,
        byte_size: u64,
    ) -> Result<CudaMapping, ShmError> {
        let not_opened = |cause: String| ShmError::CudaOpen { name: name.to_string(), cause };
        let device = device_of(driver, device_id).ok_or_else(|| not_opened(no_device(driver, device_id)))?;
        let memory = IpcMemory::open(&device, &handle.0).map_err(|error| match error {
            OpenError::Range(_) => ShmError::CudaBounds { name: name.to_string(), cause: error.to_string() },
            OpenError::Handle(_) => not_opened(format!(
                "the handle does not open on device {device_id}: {error}; it must come from cudaIpcGetMemHandle of another \
                 process, over memory that is still allocated"
            )),
            OpenError::Elsewhere { .. } => not_opened(error.to_string()),
        })?;
        let have = memory.len() as u64;
        if byte_size > have {
            let cause = format!("the allocation has {have} bytes, asked for {byte_size}");
            return Err(ShmError::CudaBounds { name: name.to_string(), cause });
        }
        // No more than `have`, which is a usize.
        Ok(CudaMapping { memory, len: byte_size as usize, handle })
    }
}

// SAFETY: the driver opened at least `len` bytes from `at` on (`open` compared) on the device that `place` names, readable and writable through the
// copier, and closes them only when `memory` is dropped. Device memory has no uninitialised state.
unsafe impl Mapping for CudaMapping {
    fn base(&self) -> NonNull<u8> {
        self.memory.at()
    }

    fn len(&self) -> usize {
        self.len
    }

    fn place(&self) -> Place {
        Place::Device(self.memory.device().ordinal())
    }

    /// Other processes can open the memory by its IPC handle.
    fn is_shareable(&self) -> bool {
        true
    }

    fn ipc(&self) -> Option<IpcSource> {
        Some(IpcSource { handle: *self.handle.as_bytes(), base: self.memory.at() })
    }

    fn copier(&self) -> Option<&dyn DeviceCopier> {
        self.memory.copier()
    }

    /// Always `None`: the host does not access this memory. If the driver refuses a copy, that copy fails.
    fn lost_at(&self) -> Option<usize> {
        None
    }

    fn object_bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    fn object_now(&self) -> ObjectNow {
        ObjectNow::Unknown
    }
}

fn device_of(driver: &Arc<Driver>, device_id: i64) -> Option<Device> {
    driver.device(u32::try_from(device_id).ok()?)
}

fn no_device(driver: &Arc<Driver>, device_id: i64) -> String {
    let devices = driver.devices();
    let known: Vec<String> = devices.iter().map(|device| format!("{} ({})", device.ordinal(), device.name())).collect();
    format!("there is no device {device_id}; the server sees {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(len: usize, fits: bool) {
        assert_eq!(CudaHandle::new(&vec![7; len]).is_ok(), fits, "{len} bytes");
    }

    #[test]
    fn a_handle_has_64_bytes() {
        check(0, false);
        check(63, false);
        check(64, true);
        check(65, false);
    }
}
