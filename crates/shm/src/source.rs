//! What must a kind of shared memory implement to be registered?
//!
//! POSIX objects are one kind. A second one in heap memory runs the conformance suite without the kernel. The registry opens an [`Object`], checks that the
//! requested [`Window`] exists, and then maps it.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use nerite_guard::MovedPages;
use nerite_memory::{DeviceCopier, IpcSource, Place};

use crate::loss::ObjectNow;
use crate::rights::Access;
use crate::window::Window;

/// Finds objects by their key.
pub(crate) trait Source: Send + Sync {
    /// The object of that key, opened for reading and writing.
    fn open(&self, key: &str) -> Result<Box<dyn Object>, ObjectError>;

    /// Who may open the object of that key, without opening it. `None` if that is not known.
    fn access_of(&self, _key: &str) -> Option<Access> {
        None
    }

    /// Offsets of mappings are multiples of this.
    fn page_bytes(&self) -> usize;
}

/// An object that was found and is held open. Dropping this value closes the object; its mappings remain valid.
pub(crate) trait Object: Send {
    /// The bytes that the object had when it was opened.
    fn byte_size(&self) -> u64;

    /// Who may open the object. `None` if all clients may.
    fn access(&self) -> Option<Access> {
        None
    }

    /// Whether all pages of the object are allocated already.
    fn is_present(&self) -> bool {
        true
    }

    /// Whether the object has few pages now, so that any thread may close it.
    fn frees_little(&self) -> bool {
        true
    }

    /// Maps a part of the object.
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

    /// What kind of memory the bytes lie in.
    fn place(&self) -> Place {
        Place::Host
    }

    /// Copies the bytes, if they are on a device.
    fn copier(&self) -> Option<&dyn DeviceCopier> {
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

    /// The offset of the first accessed byte that had no memory. `None` if all accessed bytes had memory. Costs one atomic read.
    fn lost_at(&self) -> Option<usize>;

    /// The bytes that the object had when this was mapped.
    fn object_bytes(&self) -> u64;

    /// The current state of the object, for an error text.
    fn object_now(&self) -> ObjectNow;

    /// Whether this may be the last reference to a client's object. Dropping the last one frees the pages of the whole object.
    fn is_of_client(&self) -> bool {
        false
    }

    /// Whether the object has few pages now. False if that is not known.
    fn frees_little(&self) -> bool {
        true
    }

    /// Returns the pages that replaced lost memory to the system.
    fn give_back(&self) {}

    /// The mapping of the lost memory, if it was moved elsewhere and not taken before. Dropping the result unmaps it.
    fn take_moved(&self) -> Option<MovedPages> {
        None
    }
}

/// Why an object could not be opened by its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ObjectError {
    /// It could not be opened.
    Open {
        /// Why, and the cure.
        cause: String,
    },
    /// The server's own user may not open it.
    Denied {
        /// Who may open it.
        access: Access,
        /// Why, and the cure. The text names the object's owner, so clients whose user is not known must not get it.
        cause: String,
    },
    /// It was opened but cannot be mapped.
    Invalid {
        /// Why, and the cure.
        cause: String,
    },
}
