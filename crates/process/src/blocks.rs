//! Which memory do tensors get that are not in a client's memory, so that a model's process can access them?

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nerite_memory::{Buffer, Extent, Reason, Share, Slot};
use nerite_request::Status;
use nerite_shm::{Account, LEASES_PER_SESSION_MAX, Lease, LeaseError, Pools};

use crate::limits::{KEPT_SHARE, KEPT_TIMES_MAX, TENSOR_ALIGN};

/// The memory of one instance. It is reused by later requests, and returned to the system when it is idle.
pub struct Blocks {
    account: Arc<Account>,
    /// The number of the instance, unique in this process.
    instance: u64,
}

/// A block of it. It is free again when this, its clones and all Buffers over it are dropped.
#[derive(Clone)]
pub(crate) struct Block {
    lease: Arc<Lease>,
    may_be_kept: bool,
    instance: u64,
}

impl Blocks {
    /// No memory yet.
    pub fn new(pools: &Arc<Pools>) -> Blocks {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Blocks { account: pools.open(), instance: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// The number of the instance.
    pub(crate) fn instance(&self) -> u64 {
        self.instance
    }

    /// A block of at least this many bytes.
    pub(crate) fn take(&self, bytes: usize) -> Result<Block, Status> {
        // The notices are not needed: the memory itself tells the process when it is returned to the system.
        drop(self.account.take_forgotten());
        let lease = self.account.take(bytes.max(1) as u64).map_err(|refused| self.full(bytes, &refused))?;
        // It is put back to the free list at once. The list does not give out memory that is still referenced.
        self.account.put_back(&lease);
        // All instances take their memory from the same pools.
        let ((leases, _), (used, bytes_max)) = (self.account.used(), self.account.used_by_all());
        let may_be_kept = leases <= LEASES_PER_SESSION_MAX as u64 / KEPT_SHARE && used <= bytes_max / KEPT_SHARE;
        Ok(Block { lease, may_be_kept, instance: self.instance })
    }

    fn full(&self, bytes: usize, refused: &LeaseError) -> Status {
        // The original text is about sessions and their flags, which do not apply here.
        let (_, used) = self.account.used();
        let why = match refused {
            LeaseError::System { cause, .. } => cause.clone(),
            _ => {
                format!(
                    "{used} are in use of {}, half of the host's or the control group's memory",
                    self.account.bytes_max()
                )
            }
        };
        Status::unavailable(format!(
            "no memory to share {bytes} bytes with the model's process: {why}; send less at once, or place tensors in shared memory"
        ))
    }

    /// Copies these buffers to one block, each aligned. Returns the block and the offset of each.
    pub(crate) fn gather(&self, buffers: &[&Buffer]) -> Result<(Block, Vec<usize>), Status> {
        let mut total = 0usize;
        let offsets: Vec<usize> = buffers
            .iter()
            .map(|buffer| {
                let at = total;
                total = (total + buffer.len()).next_multiple_of(TENSOR_ALIGN);
                at
            })
            .collect();
        let block = self.take(total)?;
        let mut slot = block.slot();
        for (buffer, at) in buffers.iter().zip(&offsets) {
            slot.fill_from(*at, buffer, Reason::ModelProcess).map_err(|error| Status::internal(error.to_string()))?;
        }
        Ok((block, offsets))
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        self.account.close();
    }
}

impl Block {
    /// Its size in bytes.
    pub(crate) fn byte_size(&self) -> usize {
        self.lease.byte_size()
    }

    /// Whether an output of `bytes` bytes in it may stay there after its request. A small one would hold all of the block.
    pub(crate) fn may_keep(&self, bytes: usize) -> bool {
        self.may_be_kept && self.byte_size() <= bytes.saturating_mul(KEPT_TIMES_MAX)
    }

    /// The number of the instance that it belongs to.
    pub(crate) fn instance(&self) -> u64 {
        self.instance
    }

    /// Its number in the model's process.
    pub(crate) fn segment(&self) -> u64 {
        self.lease.mark().number()
    }

    /// The whole block, for reading.
    pub(crate) fn buffer(&self) -> Buffer {
        self.lease.buffer(Extent::whole(self.lease.byte_size()))
    }

    /// Its first bytes, for writing.
    pub(crate) fn slot_of(&self, bytes: usize) -> Option<Slot> {
        Some(self.lease.slot(Extent::new(0, bytes, self.lease.byte_size()).ok()?))
    }

    fn slot(&self) -> Slot {
        self.lease.slot(Extent::whole(self.lease.byte_size()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use nerite_memory::copied_bytes;
    use nerite_shm::LeaseLimits;

    use super::*;

    #[test]
    fn a_block_is_reused_once_it_is_not_referenced() {
        let blocks = Blocks::new(&Pools::new(LeaseLimits::default()));
        let at = |block: &Block| block.buffer().as_ptr().addr();
        let first = blocks.take(100).unwrap();
        let held = first.buffer();
        let second = blocks.take(100).unwrap();
        assert_ne!(at(&first), at(&second));
        let place = at(&first);
        drop(first);
        let third = blocks.take(100).unwrap();
        assert_ne!(at(&third), place, "a buffer holds it");
        drop((held, second, third));
        let again: Vec<_> = (0..3).map(|_| blocks.take(100).unwrap()).collect();
        assert!(again.iter().any(|block| at(block) == place));
    }

    #[test]
    fn most_of_the_memory_is_not_kept() {
        let pools = Pools::new(LeaseLimits { bytes_max: 1 << 20, session_bytes_max: 1 << 20 });
        let blocks = Blocks::new(&pools);
        let held: Vec<Block> = (0..64).map(|_| blocks.take(4096).unwrap()).collect();
        let kept = held.iter().filter(|block| block.may_keep(4096)).count();
        assert_eq!(kept as u64, (1 << 20) / KEPT_SHARE / 4096, "a share of a mebibyte, in pages");
        assert!(!held.last().unwrap().may_keep(4096));
    }

    #[test]
    fn instances_share_what_may_be_kept() {
        let pools = Pools::new(LeaseLimits { bytes_max: 1 << 20, session_bytes_max: 1 << 20 });
        let instances: Vec<Blocks> = (0..4).map(|_| Blocks::new(&pools)).collect();
        let held: Vec<Block> = (0..64).map(|at| instances[at % 4].take(4096).unwrap()).collect();
        let kept = held.iter().filter(|block| block.may_keep(4096)).count();
        assert_eq!(kept as u64, (1 << 20) / KEPT_SHARE / 4096);
    }

    #[test]
    fn a_small_part_of_a_block_is_not_kept() {
        let blocks = Blocks::new(&Pools::new(LeaseLimits::default()));
        let block = blocks.take(1 << 16).unwrap();
        let half = block.byte_size() / KEPT_TIMES_MAX;
        assert!(block.may_keep(half) && !block.may_keep(half - 1));
        let part = block.buffer().slice(Extent::new(0, half, block.byte_size()).unwrap());
        assert_eq!(part.held_bytes(), block.byte_size(), "as much is charged for it");
    }

    #[test]
    fn gathered_buffers_are_aligned_and_their_copies_counted() {
        let blocks = Blocks::new(&Pools::new(LeaseLimits::default()));
        let (a, b) = (Buffer::from(vec![1u8; 65]), Buffer::from(vec![2u8; 3]));
        let before = copied_bytes(Reason::ModelProcess);
        let (block, offsets) = blocks.gather(&[&a, &Buffer::empty(), &b]).unwrap();
        assert_eq!(offsets, [0, 128, 128]);
        assert!(copied_bytes(Reason::ModelProcess) - before >= 68);
        let bytes = block.buffer().to_private(Reason::Model);
        assert_eq!(&bytes.private_bytes().unwrap()[..3], [1, 1, 1]);
        assert_eq!(&bytes.private_bytes().unwrap()[128..131], [2, 2, 2]);
    }

    #[test]
    fn more_than_there_may_be_is_refused_by_number() {
        let pools = Pools::new(LeaseLimits { bytes_max: 4096, session_bytes_max: 4096 });
        let refused = Blocks::new(&pools).take(5000).err().unwrap();
        let text = "no memory to share 5000 bytes with the model's process: 0 are in use of 4096, ";
        assert!(refused.message.starts_with(text), "{refused}");
    }
}
