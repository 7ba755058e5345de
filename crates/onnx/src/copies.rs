//! Where are the inputs that the engine computes on?
//!
//! They must be where no peer can write them: the engine computes on slices, which must not change meanwhile. Small
//! copies share one block, which an instance keeps for its next run. Small inputs of FP32 and INT32 are not copied here, but to
//! vectors that the engine takes as its own ([`crate::spares`]).

use nerite_backend::onnx::{UntrustedInputs, copy_reason, private_copy};
use nerite_memory::{Access, Buffer, Extent, NoMemory, Reason, Slot};
use nerite_request::Status;
use nerite_tensor::Tensor;
use smallvec::SmallVec;

use crate::convert::is_copied_as_value;

/// If all copies together have at most this many bytes, they share one block. Otherwise each copy has a block of its own, which returns to the pool
/// by itself. This is also the most that an instance keeps.
const JOINED_BYTES_MAX: usize = 64 << 10;
/// Each copy begins at a multiple of this, as a block does.
const ALIGN: usize = 64;

/// The block of small copies, between two runs.
#[derive(Default)]
pub struct CopyBlock(Option<Buffer>);

impl CopyBlock {
    /// A slot of at least `bytes` bytes: the block of the last run, if it is large enough and nothing uses it any more.
    fn slot(&mut self, bytes: usize) -> Result<Slot, NoMemory> {
        let kept = self.0.take().and_then(Slot::recycled).filter(|slot| slot.len() >= bytes);
        kept.map_or_else(|| Slot::try_heap(bytes), Ok)
    }
}

/// The bytes of each input, aligned, in memory that nobody else can write. An input of [`is_copied_as_value`] stays where it is.
pub fn out_of_reach(
    inputs: &[Tensor],
    untrusted: &UntrustedInputs,
    copies: &mut CopyBlock,
) -> Result<SmallVec<[Buffer; 4]>, Status> {
    let mut reasons: SmallVec<[Option<Reason>; 4]> = SmallVec::with_capacity(inputs.len());
    for input in inputs {
        let is_shared = input.data.access() == Access::Shared && !is_copied_as_value(input);
        reasons.push(copy_reason(input, untrusted)?.or(is_shared.then_some(Reason::Slices)));
    }
    let copied = || inputs.iter().zip(&reasons).filter_map(|(input, reason)| Some((input, (*reason)?)));
    let bytes = copied().fold(0, |sum: usize, (input, _)| sum.saturating_add(padded(input)));
    if copied().next().is_none() || bytes > JOINED_BYTES_MAX {
        let each = inputs.iter().zip(&reasons);
        return each
            .map(|(input, reason)| reason.map_or(Ok(input.data.clone()), |why| private_copy(input, why)))
            .collect();
    }
    let mut block = copies.slot(bytes).map_err(|refused| Status::no_memory("copies of inputs", refused))?;
    let mut at = 0;
    for (input, reason) in copied() {
        block.fill_from(at, &input.data, reason).map_err(|fault| Status::internal(fault.to_string()))?;
        at += padded(input);
    }
    let (block, mut at) = (block.filled().into_buffer(), 0);
    copies.0 = Some(block.clone());
    let mut part = |input: &Tensor| {
        let extent = Extent::new(at, input.data.len(), block.len());
        at += padded(input);
        extent.map(|extent| block.slice(extent)).map_err(|fault| Status::internal(fault.to_string()))
    };
    inputs
        .iter()
        .zip(&reasons)
        .map(|(input, reason)| if reason.is_some() { part(input) } else { Ok(input.data.clone()) })
        .collect()
}

/// Bytes of an input's copy in a shared block.
fn padded(input: &Tensor) -> usize {
    input.data.len().checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use nerite_memory::copied_bytes;
    use nerite_tensor::{DataType, Shape};

    use super::*;

    /// Lets one test copy at a time, because the counter of copied bytes belongs to the whole process.
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An input of this many bytes, which begins this far behind a multiple of 64.
    fn input(name: &str, bytes: usize, lead: usize) -> Tensor {
        let mut slot = Slot::heap(lead + bytes);
        let numbers: Vec<u8> = (0..lead + bytes).map(|at| (at + name.len()) as u8).collect();
        slot.write(0, &numbers, Reason::Model).expect("made for them");
        let all = slot.filled().into_buffer();
        let data = all.slice(Extent::new(lead, bytes, all.len()).expect("within"));
        let shape = Shape::from_slice(&[bytes as i64 / 4]);
        Tensor { name: name.into(), datatype: DataType::Int32, shape, data }
    }

    /// Copies inputs of these lengths and leads. Checks how many blocks the copies are in.
    #[track_caller]
    fn check(inputs: &[(usize, usize)]) -> usize {
        let named = |(at, (bytes, lead)): (usize, &(usize, usize))| input(&"x".repeat(at + 1), *bytes, *lead);
        let inputs: Vec<Tensor> = inputs.iter().enumerate().map(named).collect();
        let unaligned: usize = inputs.iter().filter(|one| !one.data.is_aligned(4)).map(|one| one.data.len()).sum();
        let before = copied_bytes(Reason::Unaligned);
        let taken = out_of_reach(&inputs, &UntrustedInputs::default(), &mut CopyBlock::default()).expect("some KiB");
        assert_eq!(copied_bytes(Reason::Unaligned) - before, unaligned as u64);
        let mut owners = Vec::new();
        for (one, data) in inputs.iter().zip(&taken) {
            assert!(data.is_aligned(4) && data.private_bytes() == one.data.private_bytes(), "{one:?}");
            if one.data.is_aligned(4) {
                assert_eq!(data.owner(), one.data.owner());
            } else {
                owners.push(data.owner());
            }
        }
        owners.sort_unstable();
        owners.dedup();
        owners.len()
    }

    #[test]
    fn small_copies_share_a_block_and_what_lies_right_is_not_copied() {
        let _alone = alone();
        assert_eq!(check(&[]), 0);
        assert_eq!(check(&[(64, 0), (8, 0)]), 0);
        assert_eq!(check(&[(64, 1)]), 1);
        assert_eq!(check(&[(64, 1), (8, 0), (100, 2), (0, 3), (4, 3)]), 1);
        assert_eq!(check(&[(JOINED_BYTES_MAX / 2, 1), (JOINED_BYTES_MAX / 2, 1)]), 1);
        assert_eq!(check(&[(JOINED_BYTES_MAX, 1), (4, 1)]), 2);
    }

    /// Copies one input to the kept block. Returns the copy and its address.
    fn copy(copies: &mut CopyBlock, bytes: usize) -> (Buffer, *const u8) {
        let copied = out_of_reach(&[input("x", bytes, 1)], &UntrustedInputs::default(), copies).expect("some KiB");
        (copied[0].clone(), copied[0].as_ptr())
    }

    #[test]
    fn the_block_of_a_run_serves_the_next_unless_it_is_small_or_in_use() {
        let _alone = alone();
        let mut copies = CopyBlock::default();
        let (first, place) = copy(&mut copies, 128);
        drop(first);
        let (second, same) = copy(&mut copies, 8);
        assert_eq!((same, second.len()), (place, 8));
        let (other, elsewhere) = copy(&mut copies, 8);
        assert_ne!(elsewhere, place, "the second lives");
        assert_eq!(second.private_bytes(), other.private_bytes());
        drop((second, other));
        let (larger, _) = copy(&mut copies, 16 << 10);
        assert_eq!(larger.len(), 16 << 10);
        let kept = |copies: &CopyBlock| copies.0.as_ref().map(Buffer::held_bytes);
        assert_eq!(kept(&copies), Some(16 << 10));
        copy(&mut copies, JOINED_BYTES_MAX + 4);
        assert_eq!(kept(&copies), Some(16 << 10), "large copies are not kept");
    }
}
