//! How is memory overwritten while Buffers over it exist?
//!
//! A state of a sequence may be in one buffer for all steps: the model reads it as its input and writes its next value to the same bytes. Such memory has
//! [`Access::Shared`], as if another process could write it at any moment. So it is never borrowed as a slice.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::{Access, Block, Buffer, NoMemory, Place, RewritableBlock, Slot};

impl Slot {
    /// As [`Slot::try_heap`], for memory that can be written again while it is read: see [`Buffer::rewrite`].
    pub fn try_rewritable(len: usize) -> Result<Slot, NoMemory> {
        let block = Block::try_new(len)?;
        let (ptr, owner) = (block.as_ptr(), Arc::new(RewritableBlock::new(block)));
        // SAFETY: the block has at least `len` initialised and writable bytes. `owner` owns the block, so the bytes live as long as `owner`.
        Ok(unsafe { Slot::from_raw(ptr, len, Place::Host, Access::Shared, owner) })
    }
}

impl Buffer {
    /// A slot over the same bytes. `None` if the memory does not come from [`Slot::try_rewritable`].
    pub fn rewrite(&self) -> Option<Slot> {
        let (ptr, owner) = (NonNull::new(self.as_ptr().cast_mut())?, self.memory_owner()?);
        let is_ours = self.access() == Access::Shared && owner.rewritable()?.holds(ptr, self.len());
        // SAFETY: the bytes lie in a `RewritableBlock`, which only `try_rewritable` makes. They are initialised and writable, and `owner` keeps them alive.
        // Every Buffer over them has `Access::Shared`, because that function makes the first Slot so.
        is_ours.then(|| unsafe { Slot::from_raw(ptr, self.len(), Place::Host, Access::Shared, Arc::clone(owner)) })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Extent, Reason};

    #[test]
    fn a_buffer_is_written_again_while_it_is_read() {
        for len in [4, 300 << 10] {
            let mut slot = Slot::try_rewritable(len).unwrap();
            slot.write(0, &[1, 2, 3, 4], Reason::Model).unwrap();
            let buffer = slot.filled().into_buffer();
            assert!(buffer.private_bytes().is_none(), "nobody may borrow it");
            let mut again = buffer.rewrite().unwrap();
            assert_eq!((again.as_mut_ptr().cast_const(), again.len()), (buffer.as_ptr(), len));
            again.write(1, &[9], Reason::Model).unwrap();
            let mut seen = [0; 4];
            buffer.slice(Extent::new(0, 4, len).unwrap()).copy_to(&mut seen, Reason::Model);
            assert_eq!(seen, [1, 9, 3, 4]);
            // Neither the place nor the memory changes from step to step.
            let next = again.filled().into_buffer();
            assert_eq!((next.as_ptr(), next.owner()), (buffer.as_ptr(), buffer.owner()));
            assert_eq!(next.slice(Extent::new(1, 2, len).unwrap()).rewrite().unwrap().len(), 2);
        }
    }

    #[test]
    fn other_memory_is_not() {
        assert!(Slot::heap(4).filled().into_buffer().rewrite().is_none());
        assert!(Buffer::from_numbers(vec![1u8, 2]).rewrite().is_none());
        assert!(Buffer::empty().rewrite().is_none());
    }
}
