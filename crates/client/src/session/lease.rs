//! How is memory that the server lent filled, named and read?

use std::sync::Arc;

use nerite_memory::{Buffer, CellsMut, Extent, Number, Reason, Slot};
use nerite_request::RegionRef;
use nerite_shm::AdoptedLease;
use nerite_wire::proto::session::v1;
use prost::Message as _;

use super::Shared;
use crate::{Error, View};

/// Memory of the server that this session has until the last handle, view and output over it has gone.
#[derive(Clone, Debug)]
pub struct Lease {
    name: Arc<str>,
    memory: AdoptedLease,
}

impl Lease {
    pub(super) fn new(session: &Arc<Shared>, name: String, memory: &AdoptedLease) -> Lease {
        let name: Arc<str> = name.into();
        // Whatever lives of the lease keeps the session: with the session the server takes the memory back.
        let (returned, session, byte_size) = (Arc::clone(&name), Arc::clone(session), memory.byte_size());
        let memory = memory.for_one_loan(move || give_back(&session, &returned, byte_size));
        Lease { name, memory }
    }

    /// What requests call it, over any protocol. Nobody can guess it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of bytes: at least what was asked for.
    pub fn byte_size(&self) -> usize {
        self.memory.byte_size()
    }

    /// Part of the lease as a request names it; whether it exists is for the server to say.
    pub fn window(&self, offset: usize, byte_size: usize) -> RegionRef {
        RegionRef { name: (*self.name).into(), offset: offset as u64, byte_size: byte_size as u64 }
    }

    /// Copies numbers in, from byte `offset` on, which must be a multiple of their size.
    pub fn write<T: Number>(&self, offset: usize, values: &[T]) -> Result<(), Error> {
        self.edit(offset, values.len(), |mut place: CellsMut<'_, T>| place.copy_from(0, values))
    }

    /// Copies bytes in, from byte `offset` on.
    pub fn write_bytes(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let mut slot = self.slot(offset, bytes.len())?;
        slot.write(0, bytes, Reason::InlineRequest).map_err(|reason| self.fault(reason.to_string()))
    }

    /// Lets `write` work on `count` numbers in place, from byte `offset` on: no copy at all. The server may read and write them at
    /// the same time, so they are cells and not a slice.
    pub fn edit<T: Number>(
        &self,
        offset: usize,
        count: usize,
        write: impl FnOnce(CellsMut<'_, T>),
    ) -> Result<(), Error> {
        let mut slot = self.slot(offset, count.saturating_mul(size_of::<T>()))?;
        write(slot.cells_mut::<T>().ok_or_else(|| self.misaligned(offset, size_of::<T>()))?);
        Ok(())
    }

    /// `count` numbers from byte `offset` on, in place. The server may write them while they are looked at.
    pub fn view<T: Number>(&self, offset: usize, count: usize) -> Result<View<T>, Error> {
        let buffer = self.buffer(offset, count.saturating_mul(size_of::<T>()))?;
        View::new(buffer).ok_or_else(|| self.misaligned(offset, size_of::<T>()))
    }

    /// A copy of `len` bytes from byte `offset` on.
    pub fn read_bytes(&self, offset: usize, len: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; len];
        self.buffer(offset, len)?.copy_to(&mut bytes, Reason::InlineResponse);
        Ok(bytes)
    }

    pub(super) fn memory(&self) -> &AdoptedLease {
        &self.memory
    }

    fn slot(&self, offset: usize, len: usize) -> Result<Slot, Error> {
        Ok(self.memory.slot(self.extent(offset, len)?))
    }

    fn buffer(&self, offset: usize, len: usize) -> Result<Buffer, Error> {
        Ok(self.memory.buffer(self.extent(offset, len)?))
    }

    fn extent(&self, offset: usize, len: usize) -> Result<Extent, Error> {
        let have = self.byte_size();
        Extent::new(offset, len, have)
            .map_err(|_| self.fault(format!("has {have} bytes, asked to reach {}", offset.saturating_add(len))))
    }

    fn misaligned(&self, offset: usize, size: usize) -> Error {
        self.fault(format!("offset {offset} is no multiple of the element size {size}"))
    }

    fn fault(&self, reason: String) -> Error {
        Error::Region { key: self.name.to_string(), reason }
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
