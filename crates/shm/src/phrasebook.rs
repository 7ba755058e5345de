//! Which of Triton's error texts do clients match on?
//!
//! Each error text of this crate begins with one of these, unchanged, followed by details that Triton omits.

use crate::record::Kind;

pub(crate) const DISABLED: &str =
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.";

/// Keys that begin with this, after their slashes, are reserved for Python backends.
pub(crate) const RESERVED_PREFIX: &str = "triton_python_backend_shm_region_";

pub(crate) const HANDLE_LENGTH: &str = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t";

/// Triton reports this over HTTP for a path without a name. Over gRPC it registers a region called "".
pub(crate) fn name_missing(kind: Kind) -> String {
    format!("'region name' is necessary to register {kind} shared memory region")
}

pub(crate) fn key_invalid(name: &str, key: &str) -> String {
    format!("cannot register shared memory region '{name}' - invalid shm key '{key}'")
}

pub(crate) fn key_reserved(name: &str, key: &str) -> String {
    format!(
        "cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved prefix \
         '{RESERVED_PREFIX}'"
    )
}

pub(crate) fn name_taken(name: &str) -> String {
    format!("shared memory region '{name}' already in manager")
}

pub(crate) fn open(key: &str) -> String {
    format!("Unable to open shared memory region: '{key}'")
}

pub(crate) fn object(key: &str) -> String {
    format!("Invalid shared memory region: '{key}'")
}

pub(crate) fn invalid_args(name: &str) -> String {
    format!("failed to register shared memory region '{name}': invalid args")
}

/// Omits the region's name, as Triton does.
pub(crate) const CUDA_OPEN: &str = "failed to register shared memory region: invalid args";

/// Triton puts nothing between its text and the system's.
pub(crate) fn address_space(name: &str, reason: &str) -> String {
    format!("failed to register shared memory region '{name}': unable to process address space{reason}")
}

pub(crate) fn gpus_not_supported(name: &str) -> String {
    format!("failed to register CUDA shared memory region: '{name}', GPUs not supported")
}

pub(crate) fn status_unknown(name: &str, kind: Kind) -> String {
    format!("Unable to find {kind} shared memory region: '{name}'")
}

pub(crate) fn other_kind(name: &str, requested: Kind) -> String {
    let (is, is_not) = match requested {
        Kind::System => ("CUDA", "system"),
        Kind::Cuda => ("system", "CUDA"),
    };
    format!("The region named '{name}' is registered as {is} shared memory, not {is_not} shared memory")
}

pub(crate) fn region_unknown(name: &str) -> String {
    format!("Unable to find shared memory region: '{name}'")
}

pub(crate) fn offset_beyond(name: &str) -> String {
    format!("Invalid offset for shared memory region: '{name}'")
}

pub(crate) fn overflow(name: &str, offset: u64, byte_size: u64) -> String {
    format!(
        "Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) exceeds maximum value \
         (18446744073709551615) for region '{name}'"
    )
}

pub(crate) fn end_beyond(name: &str) -> String {
    format!("Invalid offset + byte size for shared memory region: '{name}'")
}
