//! How does a client use a lease that it was lent?

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nerite_memory::{Buffer, Extent, Slot, Vacant};
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

/// A lease of a server, mapped by its client. Dropping it unmaps; Buffers and Slots over it keep the mapping.
#[derive(Clone, Debug)]
pub struct AdoptedLease {
    mapping: Arc<PosixMapping>,
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
        Ok(AdoptedLease { mapping: Arc::new(mapping) })
    }

    /// Number of bytes.
    pub fn byte_size(&self) -> usize {
        self.mapping.len()
    }

    /// Part of the lease, readable in place. The server may write it at any moment.
    ///
    /// # Panics
    /// If the extent was made for a longer thing.
    pub fn buffer(&self, extent: Extent) -> Buffer {
        buffer_of(&self.mapping, extent, Arc::clone(&self.mapping) as _)
    }

    /// Part of the lease, writable in place.
    ///
    /// # Panics
    /// If the extent was made for a longer thing.
    pub fn slot(&self, extent: Extent) -> Slot<Vacant> {
        slot_of(&self.mapping, extent, Arc::clone(&self.mapping) as _)
    }
}
