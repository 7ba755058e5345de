//! How is memory that the server lends filled, named and read?

use std::ops::Deref;
use std::sync::Arc;

use nerite_request::RegionRef;
use nerite_shm::AdoptedLease;

use crate::SharedMemory;

/// Memory of the server that is lent to this session until the last handle, view and output over it is dropped.
#[derive(Debug)]
pub struct Lease {
    memory: SharedMemory,
}

impl Lease {
    /// `memory` calls its release callback when its last clone is dropped.
    pub(super) fn new(name: Arc<str>, memory: AdoptedLease) -> Lease {
        Lease { memory: SharedMemory::of_lease(memory, name) }
    }

    /// The name of the lease in requests over any protocol. It cannot be guessed.
    pub fn name(&self) -> &str {
        self.memory.called()
    }

    /// A part of the lease, as a request names it. The server checks whether it lies in the lease.
    pub fn window(&self, offset: usize, byte_size: usize) -> RegionRef {
        RegionRef { name: self.name().into(), offset: offset as u64, byte_size: byte_size as u64 }
    }
}

impl Clone for Lease {
    fn clone(&self) -> Lease {
        Lease { memory: self.memory.again() }
    }
}

impl Deref for Lease {
    type Target = SharedMemory;

    fn deref(&self) -> &SharedMemory {
        &self.memory
    }
}
