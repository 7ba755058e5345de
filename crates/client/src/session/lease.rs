//! How is memory that the server lent filled, named and read?

use std::ops::Deref;
use std::sync::Arc;

use nerite_request::RegionRef;
use nerite_shm::AdoptedLease;

use crate::SharedMemory;

/// Memory of the server that this session has until the last handle, view and output over it is dropped.
#[derive(Debug)]
pub struct Lease {
    memory: SharedMemory,
}

impl Lease {
    /// `memory` says by itself when the last of it has gone.
    pub(super) fn new(name: Arc<str>, memory: AdoptedLease) -> Lease {
        Lease { memory: SharedMemory::of_lease(memory, name) }
    }

    /// Its name in requests over any protocol. Nobody can guess it.
    pub fn name(&self) -> &str {
        self.memory.called()
    }

    /// Part of the lease, as a request names it. The server checks whether it exists.
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
