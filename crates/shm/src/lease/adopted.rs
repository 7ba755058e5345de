//! How does a client use a lease that it borrowed?

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nerite_memory::{Buffer, Extent, MemoryOwner, Place, Slot, Vacant};
use thiserror::Error;

use super::{buffer_of, memfd, slot_of};
use crate::error::reason;
use crate::posix::PosixMapping;

/// Why a client does not use the descriptor of a lease.
#[derive(Debug, Error)]
pub enum AdoptError {
    /// The system refused it.
    #[error("the lease's descriptor cannot be used: {cause}")]
    System {
        /// The system's error text.
        cause: String,
    },
    /// The size of the file can change.
    #[error("the lease's descriptor is not sealed against shrinking")]
    Unsealed,
    /// The file has another size than the server's message says.
    #[error("the lease has {have} bytes, the server said {stated}")]
    Size {
        /// Size of the file in bytes.
        have: u64,
        /// Size in the server's message, in bytes.
        stated: usize,
    },
}

/// A lease that its client has mapped. Clones, Buffers and Slots over it keep it mapped.
#[derive(Clone)]
pub struct AdoptedLease(Arc<Held>);

/// State shared by all clones, Buffers and Slots.
struct Held {
    mapping: Arc<PosixMapping>,
    /// Called when the last clone, Buffer and Slot is dropped.
    released: Option<Box<dyn Fn() + Send + Sync>>,
}

impl AdoptedLease {
    /// Maps the lease behind `descriptor`. Refuses a file that can shrink, because an access past its end would end this process by a signal.
    pub fn adopt(descriptor: OwnedFd, byte_size: usize) -> Result<AdoptedLease, AdoptError> {
        let file = File::from(descriptor);
        let refused = |error: std::io::Error| AdoptError::System { cause: reason(&error) };
        if memfd::seals(&file).map_err(refused)? & libc::F_SEAL_SHRINK == 0 {
            return Err(AdoptError::Unsealed);
        }
        let have = file.metadata().map_err(refused)?.len();
        if have != byte_size as u64 {
            return Err(AdoptError::Size { have, stated: byte_size });
        }
        let mapping = memfd::map(&file, byte_size).map_err(refused)?;
        Ok(AdoptedLease(Arc::new(Held { mapping: Arc::new(mapping), released: None })))
    }

    /// The same memory, with a callback: `released` is called when the last clone, Buffer and Slot made from the result is dropped. Then the lease may be
    /// returned to the server.
    #[must_use]
    pub fn with_release_callback(&self, released: impl Fn() + Send + Sync + 'static) -> AdoptedLease {
        let (mapping, released) = (Arc::clone(&self.0.mapping), Some(Box::new(released) as _));
        AdoptedLease(Arc::new(Held { mapping, released }))
    }

    /// Number of bytes.
    pub fn byte_size(&self) -> usize {
        self.0.mapping.len()
    }

    /// Part of the lease, readable in place. The server may write to it at any moment.
    ///
    /// # Panics
    /// If the extent was made for a longer range.
    pub fn buffer(&self, extent: Extent) -> Buffer {
        buffer_of(&self.0.mapping, extent, Place::Host, Arc::clone(&self.0) as _)
    }

    /// Part of the lease, writable in place.
    ///
    /// # Panics
    /// If the extent was made for a longer range.
    pub fn slot(&self, extent: Extent) -> Slot<Vacant> {
        slot_of(&self.0.mapping, extent, Place::Host, Arc::clone(&self.0) as _)
    }
}

impl MemoryOwner for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(released) = &self.released {
            released();
        }
    }
}

impl std::fmt::Debug for AdoptedLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AdoptedLease({} bytes)", self.byte_size())
    }
}
