//! Which memory of a device does an instance keep for its batches?
//!
//! To allocate on a device takes long, and the driver may wait for the device's work then. So an instance keeps the blocks of its last batches. A block
//! is used again only if nothing of an earlier batch uses it any more.

use nerite_memory::{Place, Slot, SlotError};

use crate::limits::DEVICE_BLOCKS_BYTES_MAX;

/// The driver allocates multiples of this.
const GRANULE_BYTES: usize = 512;

/// The blocks of one instance. They are freed with it.
#[derive(Default)]
pub(super) struct DeviceBlocks {
    blocks: Vec<Slot>,
}

impl DeviceBlocks {
    /// Memory of `len` bytes at `place`: a block that is kept and free, or one that `allocate` makes.
    pub fn take(
        &mut self,
        place: Place,
        len: usize,
        allocate: impl FnOnce(usize) -> Result<Slot, SlotError>,
    ) -> Result<Slot, SlotError> {
        let free = self.blocks.iter_mut().filter_map(|block| block.is_sole_user().then_some(&*block));
        let fits = free.filter(|block| block.place() == place && block.len() >= len).min_by_key(|block| block.len());
        let mut slot = match fits.and_then(Slot::again) {
            Some(slot) => slot,
            None => self.add(len.max(1).next_multiple_of(GRANULE_BYTES), allocate)?,
        };
        slot.truncate(len);
        Ok(slot)
    }

    /// Allocates a block and keeps it. All free blocks are too small when this is called. The largest of them is freed, and more of them if the limit
    /// requires it.
    fn add(&mut self, len: usize, allocate: impl FnOnce(usize) -> Result<Slot, SlotError>) -> Result<Slot, SlotError> {
        self.free_largest();
        while self.bytes() + len > DEVICE_BLOCKS_BYTES_MAX {
            if !self.free_largest() {
                let (used, max) = (self.bytes(), DEVICE_BLOCKS_BYTES_MAX);
                let cause = format!("the instance uses {used} of {max} bytes for its batches, asked for {len} more");
                return Err(SlotError::NoMemory { cause });
            }
        }
        let slot = allocate(len)?;
        self.blocks.extend(slot.again());
        Ok(slot)
    }

    /// Frees the largest block that is not in use. Returns whether there was one.
    fn free_largest(&mut self) -> bool {
        let free = self.blocks.iter_mut().enumerate().filter_map(|(at, b)| b.is_sole_user().then_some((at, b.len())));
        let largest = free.max_by_key(|(_, len)| *len);
        largest.map(|(at, _)| self.blocks.swap_remove(at)).is_some()
    }

    fn bytes(&self) -> usize {
        self.blocks.iter().map(Slot::len).sum()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Memory of the host stands for that of a device.
    fn take(blocks: &mut DeviceBlocks, len: usize) -> Result<Slot, SlotError> {
        blocks.take(Place::Host, len, |len| Ok(Slot::try_rewritable(len).unwrap()))
    }

    #[test]
    fn a_block_is_used_again_as_soon_as_nothing_else_uses_it() {
        let mut blocks = DeviceBlocks::default();
        let mut first = take(&mut blocks, 1000).unwrap();
        let address = first.as_mut_ptr();
        let data = first.filled().into_buffer();
        assert_ne!(take(&mut blocks, 8).unwrap().as_mut_ptr(), address);
        drop(data);
        let mut again = take(&mut blocks, 900).unwrap();
        assert_eq!((again.as_mut_ptr(), again.len()), (address, 900));
        assert_eq!(blocks.bytes(), 1024 + 512);
    }

    #[test]
    fn a_larger_block_replaces_the_largest_that_is_free() {
        let mut blocks = DeviceBlocks::default();
        for (len, kept) in [(512, 512), (1000, 1024), (0, 1024), (4096, 4096)] {
            assert_eq!(take(&mut blocks, len).unwrap().len(), len);
            assert_eq!(blocks.bytes(), kept, "after {len} bytes");
        }
        let elsewhere = blocks.take(Place::Device(3), 512, |_| Err(SlotError::NoMemory { cause: String::new() }));
        assert!(elsewhere.is_err());
    }

    #[test]
    fn blocks_in_use_are_limited() {
        let mut blocks = DeviceBlocks::default();
        let most = DEVICE_BLOCKS_BYTES_MAX - 1024;
        let held = [take(&mut blocks, most).unwrap(), take(&mut blocks, 512).unwrap()];
        let error = take(&mut blocks, 1024).map(drop).unwrap_err().to_string();
        let used = DEVICE_BLOCKS_BYTES_MAX - 512;
        let text = format!(
            "there is no memory beside the tensor: the instance uses {used} of 268435456 bytes for its batches"
        );
        assert_eq!(error, format!("{text}, asked for 1024 more"));
        drop(held);
        assert_eq!(take(&mut blocks, DEVICE_BLOCKS_BYTES_MAX).map(|slot| slot.len()), Ok(DEVICE_BLOCKS_BYTES_MAX));
    }
}
