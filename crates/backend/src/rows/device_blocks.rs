//! Which memory of a device does an instance keep for its batches?
//!
//! Allocating memory on a device takes long, because the driver may first wait for the work of the device. So an instance keeps the blocks of its
//! last batches. A block is used again only after all earlier batches have released it.

use nerite_memory::{Place, Slot, SlotError};

use crate::limits::DEVICE_BLOCKS_BYTES_MAX;

/// The driver allocates multiples of this size.
const GRANULE_BYTES: usize = 512;

/// A kept block that is more than this many times as large as needed is not used, if the limit permits another block and the device has memory for
/// it.
const OVERSIZE_MAX: usize = 8;

/// The blocks of one instance. They are freed when the instance is dropped.
#[derive(Default)]
pub(super) struct DeviceBlocks {
    blocks: Vec<Slot>,
}

impl DeviceBlocks {
    /// Memory of `len` bytes at `place`: a kept block that is free, or a new one from `allocate`. A block that is much too large is used only if no
    /// new one can be allocated.
    pub fn take(
        &mut self,
        place: Place,
        len: usize,
        allocate: impl Fn(usize) -> Result<Slot, SlotError>,
    ) -> Result<Slot, SlotError> {
        let size = len.max(1).next_multiple_of(GRANULE_BYTES);
        let has_room = self.bytes() + size <= DEVICE_BLOCKS_BYTES_MAX;
        let mut slot = match self.best_fit(place, len) {
            Some(slot) if has_room && slot.len() / OVERSIZE_MAX > size => match allocate(size) {
                Ok(fresh) => self.keep(fresh),
                Err(_) => slot,
            },
            Some(slot) => slot,
            None => self.add(size, allocate)?,
        };
        slot.truncate(len);
        Ok(slot)
    }

    /// The smallest free block at `place` of at least `len` bytes.
    fn best_fit(&mut self, place: Place, len: usize) -> Option<Slot> {
        let free = self.blocks.iter_mut().filter_map(|block| block.is_sole_user().then_some(&*block));
        let fits = free.filter(|block| block.place() == place && block.len() >= len);
        fits.min_by_key(|block| block.len()).and_then(Slot::again)
    }

    /// Allocates a block and keeps it. Other free blocks are released first if the limit requires it, or if the device has no memory left.
    fn add(&mut self, size: usize, allocate: impl Fn(usize) -> Result<Slot, SlotError>) -> Result<Slot, SlotError> {
        let used: usize = self.blocks.iter_mut().filter_map(|b| (!b.is_sole_user()).then_some(b.len())).sum();
        if used + size > DEVICE_BLOCKS_BYTES_MAX {
            let max = DEVICE_BLOCKS_BYTES_MAX;
            let cause = format!("the instance uses {used} of {max} bytes for its batches, asked for {size} more");
            return Err(SlotError::NoMemory { cause });
        }
        while self.bytes() + size > DEVICE_BLOCKS_BYTES_MAX {
            self.free_largest(usize::MAX);
        }
        let fresh = allocate(size).or_else(|_| {
            self.blocks.retain_mut(|block| !block.is_sole_user());
            allocate(size)
        })?;
        Ok(self.keep(fresh))
    }

    /// Keeps a new block. It replaces the largest of the free blocks that are smaller, if there is one.
    fn keep(&mut self, fresh: Slot) -> Slot {
        self.free_largest(fresh.len());
        self.blocks.extend(fresh.again());
        fresh
    }

    /// Frees the largest free block of less than `below` bytes, if there is one.
    fn free_largest(&mut self, below: usize) {
        let free = self.blocks.iter_mut().enumerate().filter_map(|(at, b)| b.is_sole_user().then_some((at, b.len())));
        let largest = free.filter(|(_, len)| *len < below).max_by_key(|(_, len)| *len);
        if let Some((at, _)) = largest {
            self.blocks.swap_remove(at);
        }
    }

    fn bytes(&self) -> usize {
        self.blocks.iter().map(Slot::len).sum()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Takes a block. In these tests, memory of the host stands for that of a device.
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
        let elsewhere = blocks.take(Place::Device(3), 512, |_| Err(full()));
        assert!(elsewhere.is_err());
    }

    fn full() -> SlotError {
        SlotError::NoMemory { cause: "the device is full".into() }
    }

    #[test]
    fn a_block_that_is_much_too_large_is_used_only_if_no_other_can_be_made() {
        let mut blocks = DeviceBlocks::default();
        drop(take(&mut blocks, 9 * 512));
        let refused = blocks.take(Place::Host, 8, |_| Err(full()));
        assert_eq!((refused.map(|slot| slot.len()), blocks.bytes()), (Ok(8), 9 * 512));
        drop(take(&mut blocks, 512));
        assert_eq!(blocks.bytes(), 9 * 512 + 512, "a block of its own");
        drop(take(&mut blocks, 1024));
        assert_eq!(blocks.bytes(), 9 * 512 + 512, "the large one is not more than eight times as large");
        // Another block of 512 bytes would exceed the limit, so the large one is used.
        let mut blocks = DeviceBlocks::default();
        drop(take(&mut blocks, DEVICE_BLOCKS_BYTES_MAX));
        assert_eq!(take(&mut blocks, 512).map(|slot| slot.len()), Ok(512));
        assert_eq!(blocks.bytes(), DEVICE_BLOCKS_BYTES_MAX);
    }

    #[test]
    fn free_blocks_are_freed_only_if_the_device_has_no_memory() {
        let mut blocks = DeviceBlocks::default();
        let used = take(&mut blocks, 512).unwrap();
        drop(take(&mut blocks, 1024));
        let calls = std::cell::Cell::new(0);
        let second = blocks.take(Place::Host, 4096, |len| match calls.replace(calls.get() + 1) {
            0 => Err(full()),
            _ => Ok(Slot::try_rewritable(len).unwrap()),
        });
        assert_eq!((second.map(|slot| slot.len()), calls.get(), blocks.bytes()), (Ok(4096), 2, 512 + 4096));
        let error = blocks.take(Place::Host, 8192, |_| Err(full())).map(drop);
        assert_eq!((error, blocks.bytes()), (Err(full()), 512), "only the block in use is left");
        drop(used);
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
        let [large, small] = held;
        drop(small);
        assert!(take(&mut blocks, 2048).is_err());
        assert_eq!(blocks.bytes(), DEVICE_BLOCKS_BYTES_MAX - 512, "a request that is refused frees nothing");
        drop(large);
        assert_eq!(take(&mut blocks, DEVICE_BLOCKS_BYTES_MAX).map(|slot| slot.len()), Ok(DEVICE_BLOCKS_BYTES_MAX));
    }
}
