//! What does a client hand over to share memory of an accelerator?

use crate::error::ShmError;

/// Bytes of a `cudaIpcMemHandle_t`.
pub const CUDA_HANDLE_BYTES: usize = 64;

/// An IPC handle of the right length; only the driver can tell whether it names anything.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CudaHandle([u8; CUDA_HANDLE_BYTES]);

impl CudaHandle {
    /// The handle in these bytes. Triton checks the length over HTTP only and reads past a short one over gRPC.
    pub fn new(raw: &[u8]) -> Result<CudaHandle, ShmError> {
        raw.try_into().map(CudaHandle).map_err(|_| ShmError::HandleLength { bytes: raw.len() })
    }

    /// The bytes, for the driver.
    pub fn as_bytes(&self) -> &[u8; CUDA_HANDLE_BYTES] {
        &self.0
    }
}

impl std::fmt::Debug for CudaHandle {
    /// Without the bytes: who knows them can open the memory.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CudaHandle")
    }
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
