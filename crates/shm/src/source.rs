//! What must a kind of shared memory offer to be registered?
//!
//! POSIX objects are one kind; a heap-backed one drives the conformance suite without the kernel. The registry opens an
//! [`Object`], decides whether the [`Window`] asked for exists, and only then maps it.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use nerite_memory::{Carrier, IpcSource, Place};

use crate::loss::ObjectNow;
use crate::rights::Access;
use crate::window::Window;

/// Finds objects by their key.
pub(crate) trait Source: Send + Sync {
    /// The object of that key, opened for reading and writing.
    fn open(&self, key: &str) -> Result<Box<dyn Object>, ObjectError>;

    /// Offsets of mappings are multiples of this.
    fn page_bytes(&self) -> usize;
}

/// An object that was found and is held open. Dropping it closes it; its mappings live on.
pub(crate) trait Object {
    /// Bytes it had when it was opened.
    fn byte_size(&self) -> u64;

    /// Who may open it; `None` where everybody may.
    fn access(&self) -> Option<Access> {
        None
    }

    /// Whether all of it has memory already, so that touching it takes none.
    fn is_present(&self) -> bool {
        true
    }

    /// Maps a part of it.
    fn map(&self, window: Window) -> io::Result<Box<dyn Mapping>>;
}

/// Memory that can be read and written until this value is dropped.
///
/// # Safety
/// `len()` bytes from `base()` on are initialised, readable and writable at `place()`, at an unchanging address, from any
/// thread, until the value is dropped. Other processes may write them at any moment, and take the memory under them away:
/// then they read as zeros and `lost_at` tells.
pub(crate) unsafe trait Mapping: Send + Sync {
    /// First byte.
    fn base(&self) -> NonNull<u8>;

    /// Number of bytes.
    fn len(&self) -> usize;

    /// Where they are.
    fn place(&self) -> Place {
        Place::Host
    }

    /// Who reaches the bytes, if they are on no host.
    fn carrier(&self) -> Option<&dyn Carrier> {
        None
    }

    /// How another process would open the same memory, if it is a device's.
    fn ipc(&self) -> Option<IpcSource> {
        None
    }

    /// Whether other processes of this host can map the same object.
    fn is_shareable(&self) -> bool {
        false
    }

    /// The object once more, for another process to map, and where this mapping begins in it.
    fn reopen(&self) -> io::Result<(OwnedFd, u64)> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Another process found no memory at this offset.
    fn lose(&self, _at: usize) {}

    /// Offset of the first touched byte that had no memory under it; `None` while there was none. Only an atomic read.
    fn lost_at(&self) -> Option<usize>;

    /// Bytes the object had when this was mapped.
    fn object_bytes(&self) -> u64;

    /// What has become of the object, for the text of an error.
    fn object_now(&self) -> ObjectNow;

    /// Gives memory that came in place of the lost one back to the system.
    fn give_back(&self) {}
}

/// Why a key gives no object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ObjectError {
    /// It could not be opened.
    Open {
        /// Why, and the cure.
        cause: String,
    },
    /// It was opened and is not something to map.
    Invalid {
        /// Why, and the cure.
        cause: String,
    },
}
