//! What must a kind of shared memory implement to be registered?
//!
//! POSIX objects are one kind. A second one in heap memory runs the conformance suite without the kernel. The registry opens an [`Object`], checks that the
//! requested [`Window`] exists, and then maps it.

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

    /// Who may open it. `None` if all clients may.
    fn access(&self) -> Option<Access> {
        None
    }

    /// Whether all its pages are allocated already.
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
/// thread, until the value is dropped. Other processes may write them at any moment, and may take their memory away: then they read as zeros, and
/// `lost_at` says so.
pub(crate) unsafe trait Mapping: Send + Sync {
    /// First byte.
    fn base(&self) -> NonNull<u8>;

    /// Number of bytes.
    fn len(&self) -> usize;

    /// Where they are.
    fn place(&self) -> Place {
        Place::Host
    }

    /// Copies the bytes, if they are on a device.
    fn carrier(&self) -> Option<&dyn Carrier> {
        None
    }

    /// How another process can open the same memory, if it is on a device.
    fn ipc(&self) -> Option<IpcSource> {
        None
    }

    /// Whether other processes of this host can map the same object.
    fn is_shareable(&self) -> bool {
        false
    }

    /// A descriptor of the object for another process to map, and the offset of this mapping in it.
    fn reopen(&self) -> io::Result<(OwnedFd, u64)> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Notes that another process found no memory at this offset.
    fn lose(&self, _at: usize) {}

    /// The offset of the first accessed byte that had no memory. `None` if all had. Costs one atomic read.
    fn lost_at(&self) -> Option<usize>;

    /// Bytes the object had when this was mapped.
    fn object_bytes(&self) -> u64;

    /// The current state of the object, for an error text.
    fn object_now(&self) -> ObjectNow;

    /// Returns the pages that replaced lost memory to the system.
    fn give_back(&self) {}
}

/// Why an object could not be opened by its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ObjectError {
    /// It could not be opened.
    Open {
        /// Why, and the cure.
        cause: String,
    },
    /// It was opened but cannot be mapped.
    Invalid {
        /// Why, and the cure.
        cause: String,
    },
}
