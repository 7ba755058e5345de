//! How is memory that the server lent filled, named and read?

use std::ops::Deref;
use std::sync::Arc;

use nerite_request::RegionRef;
use nerite_shm::AdoptedLease;
use nerite_wire::proto::session::v1;
use prost::Message as _;

use super::Shared;
use crate::SharedMemory;

/// Memory of the server that this session has until the last handle, view and output over it has gone.
#[derive(Debug)]
pub struct Lease {
    memory: SharedMemory,
}

impl Lease {
    pub(super) fn new(session: &Arc<Shared>, name: String, memory: &AdoptedLease) -> Lease {
        let name: Arc<str> = name.into();
        // Whatever lives of the lease keeps the session: with the session the server takes the memory back.
        let (returned, session, byte_size) = (Arc::clone(&name), Arc::clone(session), memory.byte_size());
        let memory = memory.for_one_loan(move || give_back(&session, &returned, byte_size));
        Lease { memory: SharedMemory::of_lease(memory, name) }
    }

    /// What requests call it, over any protocol. Nobody can guess it.
    pub fn name(&self) -> &str {
        self.memory.called()
    }

    /// Part of the lease as a request names it; whether it exists is for the server to say.
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

/// Tells the server, now or with the next message.
fn give_back(session: &Shared, name: &str, byte_size: usize) {
    let Some(returned) = session.returns.add(name.to_owned(), byte_size) else { return };
    let message = v1::ClientMessage { id: 0, returned, call: None };
    if session.send_now(&message, &message.encode_to_vec()).is_err() {
        session.returns.put_back(message.returned);
    }
}
