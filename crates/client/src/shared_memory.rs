//! How does this process read and write bytes that it shares with the server?

use std::marker::PhantomData;
use std::sync::Arc;

use nerite_memory::{Buffer, Cells, CellsMut, Extent, Number, Reason, Slot};
use nerite_shm::{AdoptedLease, OwnedRegion};

use crate::Error;

/// Bytes that both this process and the server have mapped: the common part of a [`Region`](crate::Region) and a [`Lease`](crate::Lease). The server
/// may read and write them at any time, so they are lent as cells, and never as slices.
#[derive(Debug)]
pub struct SharedMemory {
    mapping: Mapping,
    /// The name of the memory in errors.
    called: Arc<str>,
}

#[derive(Clone, Debug)]
enum Mapping {
    Region(Arc<OwnedRegion>),
    Lease(AdoptedLease),
}

impl SharedMemory {
    pub(crate) fn of_region(region: OwnedRegion, called: &str) -> SharedMemory {
        SharedMemory { mapping: Mapping::Region(Arc::new(region)), called: called.into() }
    }

    pub(crate) fn of_lease(lease: AdoptedLease, called: Arc<str>) -> SharedMemory {
        SharedMemory { mapping: Mapping::Lease(lease), called }
    }

    /// Another handle to the same memory. The type is not Clone, so that the key of a region is free after its owner has dropped it.
    pub(crate) fn again(&self) -> SharedMemory {
        SharedMemory { mapping: self.mapping.clone(), called: Arc::clone(&self.called) }
    }

    /// The region's key, or the lease's name.
    pub(crate) fn called(&self) -> &str {
        &self.called
    }

    /// The size in bytes. A lease has at least the requested size.
    pub fn byte_size(&self) -> usize {
        match &self.mapping {
            Mapping::Region(region) => region.byte_size(),
            Mapping::Lease(lease) => lease.byte_size(),
        }
    }

    /// Copies numbers into the memory, from byte `offset` on. The offset must be a multiple of their size.
    pub fn write<T: Number>(&self, offset: usize, values: &[T]) -> Result<(), Error> {
        self.edit(offset, values.len(), |mut place: CellsMut<'_, T>| place.copy_from(0, values))
    }

    /// Copies bytes into the memory, from byte `offset` on.
    pub fn write_bytes(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let mut slot = self.slot(offset, bytes.len())?;
        slot.write(0, bytes, Reason::InlineRequest).map_err(|reason| self.fault(reason.to_string()))
    }

    /// Calls `write` with `count` numbers in place, from byte `offset` on. Nothing is copied. The server may read and write the numbers at the same time, so
    /// they are cells and not a slice.
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

    /// A view of `count` numbers in place, from byte `offset` on. The server may write them while they are read.
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

    /// The bytes of an extent, which must have been made with the limit [`SharedMemory::byte_size`].
    pub(crate) fn buffer_of(&self, extent: Extent) -> Buffer {
        match &self.mapping {
            Mapping::Region(region) => region.buffer(extent),
            Mapping::Lease(lease) => lease.buffer(extent),
        }
    }

    fn slot(&self, offset: usize, len: usize) -> Result<Slot, Error> {
        let extent = self.extent(offset, len)?;
        Ok(match &self.mapping {
            Mapping::Region(region) => region.slot(extent),
            Mapping::Lease(lease) => lease.slot(extent),
        })
    }

    fn buffer(&self, offset: usize, len: usize) -> Result<Buffer, Error> {
        Ok(self.buffer_of(self.extent(offset, len)?))
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
        Error::Region { key: self.called.to_string(), reason }
    }
}

/// Numbers in a region or a lease, in place. The server may write them while they are read.
#[derive(Debug)]
pub struct View<T> {
    buffer: Buffer,
    elements: PhantomData<T>,
}

impl<T: Number> View<T> {
    /// `None` if the address or the size does not fit numbers of this type.
    pub(crate) fn new(buffer: Buffer) -> Option<View<T>> {
        buffer.cells::<T>()?;
        Some(View { buffer, elements: PhantomData })
    }

    /// The numbers themselves.
    pub fn cells(&self) -> Cells<'_, T> {
        self.buffer.cells().expect("`View::new` made the view only after this very call gave Some")
    }

    /// How many numbers there are.
    pub fn len(&self) -> usize {
        self.cells().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.cells().is_empty()
    }

    /// The number at `at`, as it is now. `None` past the end.
    pub fn get(&self, at: usize) -> Option<T> {
        self.cells().get(at)
    }

    /// The numbers in order, each read once.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + '_ {
        self.cells().iter()
    }

    /// A copy of all numbers.
    pub fn to_vec(&self) -> Vec<T> {
        self.cells().to_vec()
    }
}
