//! How is memory allocated in the same place as other memory?

use std::sync::Arc;

use crate::slot::{Slot, SlotError};
use crate::{Access, Buffer, DeviceBytes, DeviceCopier, MemoryOwner, Place};

impl Buffer {
    /// Fresh memory of `len` bytes on the device where these bytes lie, or on this host.
    pub fn try_alloc_same_place(&self, len: usize) -> Result<Slot, SlotError> {
        allocate(self.copy_endpoint().copier, len)
    }
}

impl Slot {
    /// Fresh memory of `len` bytes on the device where the slot lies, or on this host.
    pub fn try_alloc_same_place(&self, len: usize) -> Result<Slot, SlotError> {
        allocate(self.copier(), len)
    }
}

fn allocate(copier: Option<&dyn DeviceCopier>, len: usize) -> Result<Slot, SlotError> {
    let no_memory = |cause| SlotError::NoMemory { cause };
    let Some(copier) = copier else {
        return Slot::try_heap(len).map_err(|refused| no_memory(refused.to_string()));
    };
    let bytes = copier.allocate(len).map_err(no_memory)?;
    let (ptr, len, place) = (bytes.at(), bytes.len(), Place::Device(bytes.ordinal()));
    // SAFETY: `DeviceBytes` promises `len` bytes at `ptr` on this device until it is dropped, and the Arc is moved into the Slot. Device memory has no
    // uninitialised state. `Access::Shared` allows other Slots.
    Ok(unsafe { Slot::from_raw(ptr, len, place, Access::Shared, Arc::new(Owned(bytes))) })
}

/// The owner of memory that was allocated here.
struct Owned(Arc<dyn DeviceBytes>);

impl MemoryOwner for Owned {
    fn copier(&self) -> Option<&dyn DeviceCopier> {
        Some(self.0.copier())
    }

    fn held_bytes(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_in_the_same_place_as_the_hosts_is_the_hosts() {
        let place_and_len = |result: Result<Slot, SlotError>| result.map(|slot| (slot.place(), slot.len()));
        assert_eq!(place_and_len(Buffer::from(vec![1]).try_alloc_same_place(8)), Ok((Place::Host, 8)));
        assert_eq!(place_and_len(Slot::heap(1).try_alloc_same_place(0)), Ok((Place::Host, 0)));
        let refused = Slot::heap(1).try_alloc_same_place(usize::MAX).map(drop).map_err(|error| error.to_string());
        let text = "there is no memory beside the tensor: the system refused a block of 18446744073709551615 bytes";
        assert_eq!(refused, Err(text.to_owned()));
    }
}
