//! How does a client make a region of its own to lend to a server?

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

/// Why a client's own region could not be made or opened.
#[derive(Debug, Error)]
pub enum OwnError {
    /// An object of that key exists.
    #[error("shared memory object '{key}' exists already; unlink it or open it")]
    Exists {
        /// The key.
        key: String,
    },
    /// The object could not be made or opened.
    #[error("cannot open shared memory object '{key}': {cause}")]
    Open {
        /// The key.
        key: String,
        /// Why.
        cause: String,
    },
    /// The object could not get its bytes.
    #[error("cannot give shared memory object '{key}' {byte_size} bytes: {cause}")]
    NoSpace {
        /// The key.
        key: String,
        /// Bytes asked for.
        byte_size: usize,
        /// Why.
        cause: String,
    },
}

/// A POSIX region of this process, mapped from its first byte to its last. Dropping it unlinks the key if this value
/// created the object; Buffers and Slots over it, and a server that registered it, keep their mappings.
#[derive(Debug)]
pub struct OwnedRegion {
    key: String,
    /// Whether Drop removes the key. After [`OwnedRegion::unlink`] it must not: the key may be somebody else's by then.
    linked: bool,
    mapping: Arc<PosixMapping>,
}

impl OwnedRegion {
    /// Makes the object `key` with `byte_size` bytes of zeros, for this user alone; it must not exist. The memory is
    /// reserved here, so that a full `/dev/shm` is an error now and not a signal at the first write.
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
                // Best effort: the object was made a moment ago, and the error to tell is the first one.
                let _ = unlink(key);
                Err(OwnError::NoSpace { key: key.to_string(), byte_size, cause: room_cause(&error) })
            }
        }
    }

    /// Opens all of an object that another process made; dropping this does not unlink it.
    pub fn open(key: &str) -> Result<OwnedRegion, OwnError> {
        let file = open(key, 0).map_err(|error| open_error(key, open_cause(key, &error)))?;
        let object = PosixObject::new(key, file).map_err(|cause| open_error(key, cause))?;
        let mapping = whole(object.byte_size() as usize).and_then(|window| PosixMapping::new(object.file(), window));
        let mapping = mapping.map_err(|error| open_error(key, reason(&error)))?;
        Ok(OwnedRegion { key: key.to_string(), linked: false, mapping: Arc::new(mapping) })
    }

    /// The key a server registers it by.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Number of bytes.
    pub fn byte_size(&self) -> usize {
        self.mapping.len()
    }

    /// Part of the region, readable in place. The server may write it at any moment.
    ///
    /// # Panics
    /// If the extent was made for a longer thing.
    pub fn buffer(&self, extent: Extent) -> Buffer {
        assert!(extent.end() <= self.mapping.len(), "extent up to {} of {}", extent.end(), self.mapping.len());
        // SAFETY: the extent ends within the mapping, by the assertion.
        let ptr = unsafe { self.mapping.base().add(extent.offset()) };
        // SAFETY: the bytes are initialised by the kernel and mapped while the Arc handed over lives; Shared claims nothing
        // about other writers.
        unsafe { Buffer::from_raw(ptr, extent.len(), Place::Host, Access::Shared, Arc::clone(&self.mapping) as _) }
    }

    /// Part of the region, writable in place.
    ///
    /// # Panics
    /// If the extent was made for a longer thing.
    pub fn slot(&self, extent: Extent) -> Slot<Vacant> {
        assert!(extent.end() <= self.mapping.len(), "extent up to {} of {}", extent.end(), self.mapping.len());
        // SAFETY: the extent ends within the mapping, by the assertion.
        let ptr = unsafe { self.mapping.base().add(extent.offset()) };
        // SAFETY: as in `buffer`, and the mapping is writable.
        unsafe { Slot::from_raw(ptr, extent.len(), Place::Host, Access::Shared, Arc::clone(&self.mapping) as _) }
    }

    /// Removes the key now. A server can no longer register the object; who has it mapped keeps it.
    pub fn unlink(&mut self) -> io::Result<()> {
        self.linked = false;
        unlink(&self.key)
    }
}

impl Drop for OwnedRegion {
    fn drop(&mut self) {
        if self.linked {
            // Somebody else may have removed the key already, and Drop has nobody to tell.
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

/// Gives the object its size and its pages. A signal makes the call start again.
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

fn room_cause(error: &io::Error) -> String {
    let objects = Objects::look();
    match (error.raw_os_error(), objects.free_bytes) {
        (Some(libc::EINVAL), _) => "a region has at least one byte".to_string(),
        (Some(libc::ENOSPC), Some(free)) => format!("{} ({objects}, {} free)", reason(error), Size(free)),
        _ => reason(error),
    }
}
