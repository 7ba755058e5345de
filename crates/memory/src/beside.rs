//! How is memory allocated beside other memory?

use std::sync::Arc;

use crate::slot::{Slot, SlotError};
use crate::{Access, Buffer, Carrier, DeviceBytes, Keep, Place};

impl Buffer {
    /// Fresh memory of `len` bytes on the device where these bytes lie, or on this host.
    pub fn try_beside(&self, len: usize) -> Result<Slot, SlotError> {
        allocate(self.end().carrier, len)
    }
}

impl Slot {
    /// Fresh memory of `len` bytes on the device where the slot lies, or on this host.
    pub fn try_beside(&self, len: usize) -> Result<Slot, SlotError> {
        allocate(self.carrier(), len)
    }
}

fn allocate(carrier: Option<&dyn Carrier>, len: usize) -> Result<Slot, SlotError> {
    let no_memory = |cause| SlotError::NoMemory { cause };
    let Some(carrier) = carrier else {
        return Slot::try_heap(len).map_err(|refused| no_memory(refused.to_string()));
    };
    let bytes = carrier.allocate(len).map_err(no_memory)?;
    let (ptr, len, place) = (bytes.at(), bytes.len(), Place::Device(bytes.ordinal()));
    // SAFETY: `DeviceBytes` promises `len` bytes at `ptr` on this device until it is dropped, and the Arc is moved into the Slot. Device memory has no
    // uninitialised state. `Access::Shared` allows other Slots.
    Ok(unsafe { Slot::from_raw(ptr, len, place, Access::Shared, Arc::new(Owned(bytes))) })
}

/// The owner of memory that was allocated here.
struct Owned(Arc<dyn DeviceBytes>);

impl Keep for Owned {
    fn carrier(&self) -> Option<&dyn Carrier> {
        Some(self.0.carrier())
    }

    fn held_bytes(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_beside_that_of_the_host_is_the_hosts() {
        let beside = |result: Result<Slot, SlotError>| result.map(|slot| (slot.place(), slot.len()));
        assert_eq!(beside(Buffer::from(vec![1]).try_beside(8)), Ok((Place::Host, 8)));
        assert_eq!(beside(Slot::heap(1).try_beside(0)), Ok((Place::Host, 0)));
        let refused = Slot::heap(1).try_beside(usize::MAX).map(drop).map_err(|error| error.to_string());
        let text = "there is no memory beside the tensor: the system refused a block of 18446744073709551615 bytes";
        assert_eq!(refused, Err(text.to_owned()));
    }
}
