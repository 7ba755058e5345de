//! Which errors can calls about shared memory have?

use std::sync::Arc;

use thiserror::Error;

use crate::limits::NAME_BYTES_MAX;
use crate::loss::Loss;
use crate::phrasebook;
use crate::record::{Kind, Origin, Record};

/// The kind of an error. `api` maps each kind to the codes of its protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The operator disabled the call.
    Disabled,
    /// An argument is invalid.
    Invalid,
    /// The name is in use.
    Taken,
    /// There is no such region, or the region is of the other kind.
    Missing,
    /// The object could not be opened, or is not a shared memory object.
    Internal,
}

/// The error of a call about shared memory. The text begins with Triton's, followed by cause, numbers and cure.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ShmError {
    /// `--allow-client-shm=false`.
    #[error("{}", phrasebook::DISABLED)]
    Disabled,
    /// A region needs a name.
    #[error("{}: the empty name stands for all regions in status and unregister", phrasebook::name_missing(*.0))]
    NameMissing(Kind),
    /// The name is longer than `limits::NAME_BYTES_MAX`.
    #[error("the region's name has {bytes} bytes, at most {NAME_BYTES_MAX} are allowed")]
    NameLong {
        /// Bytes of the name.
        bytes: usize,
    },
    /// The key consists only of slashes.
    #[error(
        "{}: it has no character besides '/'; a key is one name, such as '/input0'",
        phrasebook::key_invalid(name, key)
    )]
    KeyInvalid {
        /// The region's name.
        name: String,
        /// The key as the client wrote it.
        key: String,
    },
    /// The key is reserved for Python backends.
    #[error("{}", phrasebook::key_reserved(name, key))]
    KeyReserved {
        /// The region's name.
        name: String,
        /// The key as the client wrote it.
        key: String,
    },
    /// The name is registered.
    #[error("{}: {}; unregister it first", phrasebook::name_taken(&holder.name), described(holder))]
    NameTaken {
        /// The region that has the name.
        holder: Arc<Record>,
    },
    /// The object could not be opened.
    #[error("{}: {cause}", phrasebook::open(key))]
    Open {
        /// The key as the client wrote it.
        key: String,
        /// Why, and the cure.
        cause: String,
    },
    /// The opened file is not a shared memory object.
    #[error("{}: {cause}", phrasebook::object(key))]
    Object {
        /// The key as the client wrote it.
        key: String,
        /// Why, and the cure.
        cause: String,
    },
    /// The region would end past its object.
    #[error(
        "{} (object '{key}' has {object_bytes} bytes, asked for {byte_size} at offset {offset})",
        phrasebook::invalid_args(name)
    )]
    Bounds {
        /// The region's name.
        name: String,
        /// The key as the client wrote it.
        key: String,
        /// Requested offset.
        offset: u64,
        /// Requested bytes.
        byte_size: u64,
        /// Bytes of the object.
        object_bytes: u64,
    },
    /// The object could not be mapped.
    #[error("{} ({cause})", phrasebook::address_space(name, reason))]
    Map {
        /// The region's name.
        name: String,
        /// The system's error text.
        reason: String,
        /// Why, and the cure.
        cause: String,
    },
    /// Too many clients have regions.
    #[error("{owners} users and addresses have regions registered, which is the most there may be; try again later")]
    OwnersMany {
        /// How many clients have regions.
        owners: usize,
    },
    /// A CUDA region on a server without a GPU.
    #[error("{}: this server reaches no GPU; use system shared memory", phrasebook::gpus_not_supported(name))]
    GpusNotSupported {
        /// The region's name.
        name: String,
    },
    /// A CUDA IPC handle of the wrong length.
    #[error("{}: it has {bytes} bytes, a handle has 64", phrasebook::HANDLE_LENGTH)]
    HandleLength {
        /// Bytes of the handle.
        bytes: usize,
    },
    /// A CUDA IPC handle that does not open on the device named.
    #[error("{}: region '{name}': {cause}", phrasebook::CUDA_OPEN)]
    CudaOpen {
        /// The region's name.
        name: String,
        /// Why, and the cure.
        cause: String,
    },
    /// A CUDA region that was opened but cannot be used.
    #[error("{} ({cause})", phrasebook::invalid_args(name))]
    CudaBounds {
        /// The region's name.
        name: String,
        /// Why, and the cure.
        cause: String,
    },
    /// Status of an unknown name.
    #[error("{}: no region of that name is registered", phrasebook::status_unknown(name, *kind))]
    StatusUnknown {
        /// The requested name.
        name: String,
        /// The requested kind.
        kind: Kind,
    },
    /// Status of a region of the other kind.
    #[error("{}", phrasebook::other_kind(name, *requested))]
    OtherKind {
        /// The requested name.
        name: String,
        /// The requested kind. The region has the other one.
        requested: Kind,
    },
    /// A tensor in an unknown region.
    #[error(
        "{}: no region of that name is registered; register it before the request",
        phrasebook::region_unknown(name)
    )]
    RegionUnknown {
        /// The requested name.
        name: String,
    },
    /// A tensor in a region whose memory was lost.
    #[error("{0}")]
    Lost(Box<Loss>),
    /// A tensor that starts past the region's last byte.
    #[error("{}: it has {region_bytes} bytes, offset {offset} is past the last", phrasebook::offset_beyond(name))]
    OffsetBeyond {
        /// The region's name.
        name: String,
        /// Requested offset.
        offset: u64,
        /// Bytes of the region.
        region_bytes: u64,
    },
    /// A tensor whose end does not fit in a 64-bit number.
    #[error("{}", phrasebook::overflow(name, *offset, *byte_size))]
    Overflow {
        /// The region's name.
        name: String,
        /// Requested offset.
        offset: u64,
        /// Requested bytes.
        byte_size: u64,
    },
    /// A tensor that ends past the region's last byte.
    #[error("{}: it has {region_bytes} bytes, asked for {byte_size} at offset {offset}", phrasebook::end_beyond(name))]
    EndBeyond {
        /// The region's name.
        name: String,
        /// Requested offset.
        offset: u64,
        /// Requested bytes.
        byte_size: u64,
        /// Bytes of the region.
        region_bytes: u64,
    },
}

impl ShmError {
    /// The kind of this error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            ShmError::Disabled => ErrorKind::Disabled,
            ShmError::NameTaken { .. } => ErrorKind::Taken,
            ShmError::StatusUnknown { .. } | ShmError::OtherKind { .. } | ShmError::RegionUnknown { .. } => {
                ErrorKind::Missing
            }
            ShmError::Open { .. } | ShmError::Object { .. } => ErrorKind::Internal,
            ShmError::NameMissing(_)
            | ShmError::NameLong { .. }
            | ShmError::KeyInvalid { .. }
            | ShmError::KeyReserved { .. }
            | ShmError::Bounds { .. }
            | ShmError::Map { .. }
            | ShmError::OwnersMany { .. }
            | ShmError::GpusNotSupported { .. }
            | ShmError::HandleLength { .. }
            | ShmError::CudaOpen { .. }
            | ShmError::CudaBounds { .. }
            | ShmError::Lost(_)
            | ShmError::OffsetBeyond { .. }
            | ShmError::Overflow { .. }
            | ShmError::EndBeyond { .. } => ErrorKind::Invalid,
        }
    }
}

fn described(record: &Record) -> String {
    let bytes = record.byte_size;
    match &record.origin {
        Origin::System { key, offset } => format!("{bytes} bytes at offset {offset} of object '{key}'"),
        Origin::Cuda { device_id } => format!("{bytes} bytes on device {device_id}"),
    }
}

/// The system's text for an error number, as from `strerror`.
pub(crate) fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(end) => text[..end].to_string(),
        None => text,
    }
}
