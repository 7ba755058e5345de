//! How does a client use a lease that it was lent?

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nerite_memory::{Buffer, Extent, Keep, Place, Slot, Vacant};
use thiserror::Error;

use super::{buffer_of, memfd, slot_of};
use crate::error::reason;
use crate::posix::PosixMapping;

/// Why a descriptor from a server is not used.
#[derive(Debug, Error)]
pub enum AdoptError {
    /// The system refused.
    #[error("the lease's descriptor cannot be used: {cause}")]
    System {
        /// The system's words.
        cause: String,
    },
    /// A file whose size can change.
    #[error("the lease's descriptor is not sealed against shrinking")]
    Unsealed,
    /// A file of another size than the message said.
    #[error("the lease has {have} bytes, the server said {said}")]
    Size {
        /// Bytes it has.
        have: u64,
        /// Bytes the server said.
        said: usize,
    },
}

/// A lease of a server, mapped by its client. Clones, Buffers and Slots over it keep the mapping.
#[derive(Clone)]
pub struct AdoptedLease(Arc<Held>);

/// What everything over the lease holds.
struct Held {
    mapping: Arc<PosixMapping>,
    /// Called when the last of them goes.
    released: Option<Box<dyn Fn() + Send + Sync>>,
}

impl AdoptedLease {
    /// Maps the lease behind `descriptor`, after a look at whether it is one: a file that can shrink would end this process
    /// by a signal.
    pub fn adopt(descriptor: OwnedFd, byte_size: usize) -> Result<AdoptedLease, AdoptError> {
        let file = File::from(descriptor);
        let refused = |error: std::io::Error| AdoptError::System { cause: reason(&error) };
        if memfd::seals(&file).map_err(refused)? & libc::F_SEAL_SHRINK == 0 {
            return Err(AdoptError::Unsealed);
        }
        let have = file.metadata().map_err(refused)?.len();
        if have != byte_size as u64 {
            return Err(AdoptError::Size { have, said: byte_size });
        }
        let mapping = memfd::map(&file, byte_size).map_err(refused)?;
        Ok(AdoptedLease(Arc::new(Held { mapping: Arc::new(mapping), released: None })))
    }

    /// The same memory for one loan of it: `released` is called when the last clone, Buffer and Slot made from the result has
    /// gone, which is when the lease may be returned.
    #[must_use]
    pub fn for_one_loan(&self, released: impl Fn() + Send + Sync + 'static) -> AdoptedLease {
        let (mapping, released) = (Arc::clone(&self.0.mapping), Some(Box::new(released) as _));
        AdoptedLease(Arc::new(Held { mapping, released }))
    }

    /// Number of bytes.
    pub fn byte_size(&self) -> usize {
        self.0.mapping.len()
    }

    /// Part of the lease, readable in place. The server may write it at any moment.
    ///
    /// # Panics
    /// If the extent was made for a longer thing.
    pub fn buffer(&self, extent: Extent) -> Buffer {
        buffer_of(&self.0.mapping, extent, Place::Host, Arc::clone(&self.0) as _)
    }

    /// Part of the lease, writable in place.
    ///
    /// # Panics
    /// If the extent was made for a longer thing.
    pub fn slot(&self, extent: Extent) -> Slot<Vacant> {
        slot_of(&self.0.mapping, extent, Place::Host, Arc::clone(&self.0) as _)
    }
}

impl Keep for Held {}

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
