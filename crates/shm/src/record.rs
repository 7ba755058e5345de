//! What is known about a region besides its memory?

use std::sync::Arc;

/// The kind of a region's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A POSIX shared memory object.
    System,
    /// Memory of an accelerator, opened through its IPC handle.
    Cuda,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::System => "system",
            Kind::Cuda => "cuda",
        })
    }
}

/// The parameters of the client's registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `byte_size` bytes from `offset` on of the object `key`.
    System {
        /// The POSIX key as the client wrote it.
        key: Box<str>,
        /// Offset of the region's first byte in the object.
        offset: u64,
    },
    /// The start of an allocation on a device.
    Cuda {
        /// The device's ordinal.
        device_id: u64,
    },
}

/// The description of a region, which its status shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The name that requests use.
    pub name: Arc<str>,
    /// Number of bytes.
    pub byte_size: u64,
    /// The origin of the bytes.
    pub origin: Origin,
}

impl Record {
    /// System or CUDA.
    pub fn kind(&self) -> Kind {
        match self.origin {
            Origin::System { .. } => Kind::System,
            Origin::Cuda { .. } => Kind::Cuda,
        }
    }
}

/// One entry of the answer to a system status call. The fields are in Triton's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemStatus {
    /// The region's name.
    pub name: Arc<str>,
    /// The POSIX key as the client wrote it.
    pub key: Box<str>,
    /// Offset of the region's first byte in the object.
    pub offset: u64,
    /// Number of bytes.
    pub byte_size: u64,
}

/// One entry of the answer to a CUDA status call. The fields are in Triton's order. The IPC handle is never reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaStatus {
    /// The region's name.
    pub name: Arc<str>,
    /// The device's ordinal.
    pub device_id: u64,
    /// Number of bytes.
    pub byte_size: u64,
}

impl SystemStatus {
    pub(crate) fn of(record: &Record) -> Option<SystemStatus> {
        let Origin::System { key, offset } = &record.origin else { return None };
        Some(SystemStatus {
            name: Arc::clone(&record.name),
            key: key.clone(),
            offset: *offset,
            byte_size: record.byte_size,
        })
    }
}

impl CudaStatus {
    pub(crate) fn of(record: &Record) -> Option<CudaStatus> {
        let Origin::Cuda { device_id } = record.origin else { return None };
        Some(CudaStatus { name: Arc::clone(&record.name), device_id, byte_size: record.byte_size })
    }
}
