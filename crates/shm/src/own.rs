//! How does a client create a region of its own for a server to use?

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use nerite_memory::{Access, Buffer, Extent, Place, Slot, Vacant};
use thiserror::Error;

use crate::error::reason;
use crate::objects::{Objects, Size};
use crate::posix::{PosixMapping, PosixObject, open, open_cause, page_bytes, unlink};
use crate::source::Object;
use crate::window::Window;

/// Why a client's own region could not be created or opened.
#[derive(Debug, Error)]
pub enum OwnError {
    /// An object of that key exists.
    #[error("shared memory object '{key}' exists already; unlink it or open it")]
    Exists {
        /// The key.
        key: String,
    },
    /// The object could not be created or opened.
    #[error("cannot open shared memory object '{key}': {cause}")]
    Open {
        /// The key.
        key: String,
        /// Why.
        cause: String,
    },
    /// The object's memory could not be allocated.
    #[error("cannot give shared memory object '{key}' {byte_size} bytes: {cause}")]
    NoSpace {
        /// The key.
        key: String,
        /// Requested bytes.
        byte_size: usize,
        /// Why.
        cause: String,
    },
}

/// A POSIX object of this process, mapped as a whole. Dropping this value unlinks the key if this value created the object. Buffers and Slots over the
/// object, and a server that registered it, keep their mappings.
#[derive(Debug)]
pub struct OwnedRegion {
    key: String,
    /// Whether Drop removes the key. False after [`OwnedRegion::unlink`], because another process may have created an object of this key since.
    linked: bool,
    mapping: Arc<PosixMapping>,
}

impl OwnedRegion {
    /// Creates the object `key` with `byte_size` bytes of zeros, accessible only to this user. The object must not exist. Its memory is allocated
    /// here, so a full `/dev/shm` is an error now and not a signal at the first write.
    pub fn create(key: &str, byte_size: usize) -> Result<OwnedRegion, OwnError> {
        if key.trim_start_matches('/').is_empty() {
            return Err(open_error(key, "the key is empty".to_string()));
        }
        let file = open(key, libc::O_CREAT | libc::O_EXCL).map_err(|error| match error.raw_os_error() {
            Some(libc::EEXIST) => OwnError::Exists { key: key.to_string() },
            _ => open_error(key, open_cause(key, &error)),
        })?;
        let made = reserve(&file, byte_size).and_then(|()| PosixMapping::new(&file, whole(byte_size)?));
        match made {
            Ok(mapping) => Ok(OwnedRegion { key: key.to_string(), linked: true, mapping: Arc::new(mapping) }),
            Err(error) => {
                // Best effort: the object was just created, and the first error is the one to report.
                let _ = unlink(key);
                Err(OwnError::NoSpace { key: key.to_string(), byte_size, cause: no_space_cause(&error) })
            }
        }
    }

    /// Opens a whole object that another process created. Dropping the result does not unlink the key.
    pub fn open(key: &str) -> Result<OwnedRegion, OwnError> {
        let file = open(key, 0).map_err(|error| open_error(key, open_cause(key, &error)))?;
        let object = PosixObject::new(key, file).map_err(|cause| open_error(key, cause))?;
        let mapping = whole(object.byte_size() as usize).and_then(|window| PosixMapping::new(object.file(), window));
        let mapping = mapping.map_err(|error| open_error(key, reason(&error)))?;
        Ok(OwnedRegion { key: key.to_string(), linked: false, mapping: Arc::new(mapping) })
    }

    /// The key with which a server registers the object.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Number of bytes.
    pub fn byte_size(&self) -> usize {
        self.mapping.len()
    }

    /// Part of the region, readable in place. The server may write to it at any moment.
    ///
    /// # Panics
    /// If the extent was made for a longer range.
    pub fn buffer(&self, extent: Extent) -> Buffer {
        assert!(extent.end() <= self.mapping.len(), "extent up to {} of {}", extent.end(), self.mapping.len());
        // SAFETY: the extent ends within the mapping, by the assertion.
        let ptr = unsafe { self.mapping.base().add(extent.offset()) };
        // SAFETY: the bytes are initialised by the kernel and mapped while the Arc passed here lives. Shared claims nothing about other writers.
        unsafe { Buffer::from_raw(ptr, extent.len(), Place::Host, Access::Shared, Arc::clone(&self.mapping) as _) }
    }

    /// Part of the region, writable in place.
    ///
    /// # Panics
    /// If the extent was made for a longer range.
    pub fn slot(&self, extent: Extent) -> Slot<Vacant> {
        assert!(extent.end() <= self.mapping.len(), "extent up to {} of {}", extent.end(), self.mapping.len());
        // SAFETY: the extent ends within the mapping, by the assertion.
        let ptr = unsafe { self.mapping.base().add(extent.offset()) };
        // SAFETY: as in `buffer`, and the mapping is writable.
        unsafe { Slot::from_raw(ptr, extent.len(), Place::Host, Access::Shared, Arc::clone(&self.mapping) as _) }
    }

    /// Removes the key now. A server can no longer register the object. Existing mappings remain valid.
    pub fn unlink(&mut self) -> io::Result<()> {
        self.linked = false;
        unlink(&self.key)
    }
}

impl Drop for OwnedRegion {
    fn drop(&mut self) {
        if self.linked {
            // Another process may have removed the key already, and Drop cannot report errors.
            let _ = unlink(&self.key);
        }
    }
}

impl std::fmt::Debug for PosixMapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PosixMapping({} bytes)", self.len())
    }
}

fn open_error(key: &str, cause: String) -> OwnError {
    OwnError::Open { key: key.to_string(), cause }
}

fn whole(byte_size: usize) -> io::Result<Window> {
    let window = Window::new(0, byte_size as u64, byte_size as u64, page_bytes());
    window.map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Sets the object's size and allocates its pages. Repeats the call if a signal interrupts it.
fn reserve(file: &File, byte_size: usize) -> io::Result<()> {
    let len = libc::off_t::try_from(byte_size).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    loop {
        // SAFETY: the descriptor is open while `file` lives.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) } {
            0 => return Ok(()),
            libc::EINTR => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

fn no_space_cause(error: &io::Error) -> String {
    let objects = Objects::look();
    match (error.raw_os_error(), objects.free_bytes) {
        (Some(libc::EINVAL), _) => "a region has at least one byte".to_string(),
        (Some(libc::ENOSPC), Some(free)) => format!("{} ({objects}, {} free)", reason(error), Size(free)),
        _ => reason(error),
    }
}
