//! Where may a result be written, and when does it become readable?

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::copy::{CopyEndpoint, Reason, copy_across};
use crate::{
    Access, Block, Buffer, CellsMut, DeviceCopier, Extent, IpcWindow, MemoryOwner, NoMemory, Number, Place,
    SharedWindow,
};

/// The state of a slot that may still be written.
#[derive(Debug)]
pub struct Vacant;
/// The state of a slot whose bytes are final.
#[derive(Debug)]
pub struct Filled;

/// Writable memory for one result. `Slot<Vacant>` is written, `Slot<Filled>` becomes a [`Buffer`].
pub struct Slot<S = Vacant> {
    ptr: NonNull<u8>,
    len: usize,
    place: Place,
    access: Access,
    owner: Arc<dyn MemoryOwner>,
    state: PhantomData<S>,
}

// SAFETY: `owner` (Send + Sync) holds the bytes on whichever thread the Slot is. Bytes with `Access::Private` have no other user, and others are accessed only
// through pointers.
unsafe impl<S> Send for Slot<S> {}
// SAFETY: a shared Slot has no method that writes.
unsafe impl<S> Sync for Slot<S> {}

/// Why a result could not be written to its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotError {
    /// The result does not fit.
    Small {
        /// Bytes that the slot has.
        have: usize,
        /// Bytes that the slot would need.
        need: usize,
    },
    /// A device's driver failed.
    DeviceCopy {
        /// Why.
        cause: String,
    },
    /// There is no memory for the slot.
    NoMemory {
        /// Why.
        cause: String,
    },
}

impl std::fmt::Display for SlotError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SlotError::Small { have, need } => {
                write!(f, "the place for the result has {have} bytes, the result needs {need}")
            }
            SlotError::DeviceCopy { cause } => write!(f, "cannot copy between host and device: {cause}"),
            SlotError::NoMemory { cause } => write!(f, "there is no memory beside the tensor: {cause}"),
        }
    }
}

impl std::error::Error for SlotError {}

impl Slot<Vacant> {
    /// `len` bytes of this process, aligned to 64. If there is no memory, the process ends. So this is only for sizes that no client chose.
    pub fn heap(len: usize) -> Slot {
        Slot::of_block(Block::new(len), len)
    }

    /// As [`Slot::heap`], for a size that a client chose.
    pub fn try_heap(len: usize) -> Result<Slot, NoMemory> {
        Ok(Slot::of_block(Block::try_new(len)?, len))
    }

    /// A slot for `whole` bytes that a client announced and has not sent. It has all of them if the pool has a block of that size, else at most `first`. Call
    /// [`Slot::try_grow`] as the bytes arrive.
    pub fn try_announced(whole: usize, first: usize) -> Result<Slot, NoMemory> {
        match Block::pooled(whole) {
            Some(block) => Ok(Slot::of_block(block, whole)),
            None => Slot::try_heap(whole.min(first)),
        }
    }

    fn of_block(block: Block, len: usize) -> Slot {
        let (ptr, owner) = (block.as_ptr(), Arc::new(block));
        Slot { ptr, len, place: Place::Host, access: Access::Private, owner, state: PhantomData }
    }

    /// A slot over the whole block that `buffer` lies in, which has the bytes of its last use. `None` if the memory does not come from [`Slot::heap`] or
    /// [`Slot::try_heap`], or if another Buffer over it exists.
    pub fn recycled(buffer: Buffer) -> Option<Slot> {
        let mut owner = buffer.into_owner()?;
        let block = Arc::get_mut(&mut owner)?.block_mut()?;
        block.pass_on();
        let (ptr, len) = (block.as_ptr(), block.capacity());
        Some(Slot { ptr, len, place: Place::Host, access: Access::Private, owner, state: PhantomData })
    }

    /// Enlarges the slot to `len` bytes and keeps the first `used` bytes. The pages of a large block of this process are moved, without a copy. Otherwise the
    /// bytes are copied to a fresh block, counted under `reason`. On failure the slot is unchanged.
    pub fn try_grow(&mut self, len: usize, used: usize, reason: Reason) -> Result<(), NoMemory> {
        if len <= self.len {
            return Ok(());
        }
        let start = self.ptr;
        let whole = Arc::get_mut(&mut self.owner).and_then(MemoryOwner::block_mut);
        if let Some(block) = whole.filter(|block| block.as_ptr() == start && block.can_grow()) {
            block.try_grow(len)?;
            (self.ptr, self.len) = (block.as_ptr(), len);
            return Ok(());
        }
        let larger = Slot::try_heap(len)?;
        let kept = Extent::new(0, used.min(self.len), self.len).expect("it is capped to what it lies in");
        // SAFETY: `kept` lies within our bytes, and within those of the fresh slot, which is longer and nobody else's.
        let copied = unsafe { copy_across(self.copy_endpoint(kept), larger.copy_endpoint(kept), kept.len(), reason) };
        copied.map_err(|_| NoMemory::refused(len))?;
        *self = larger;
        Ok(())
    }

    /// `len` bytes at `ptr`, alive as long as `owner` is.
    ///
    /// # Safety
    /// `ptr` points to `len` initialised, writable bytes at `place` that stay mapped while `owner` lives; with
    /// [`Access::Private`] no other Slot or Buffer over them exists.
    pub unsafe fn from_raw(
        ptr: NonNull<u8>,
        len: usize,
        place: Place,
        access: Access,
        owner: Arc<dyn MemoryOwner>,
    ) -> Slot {
        Slot { ptr, len, place, access, owner, state: PhantomData }
    }

    /// The address, for a runtime that writes through pointers. Valid while the Slot lives.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Sets all bytes to zero before the first write, for code that may leave some bytes unwritten. Memory that came from the system for this slot is zero
    /// already. Memory of a device is not changed.
    pub fn clear(&mut self) {
        let block = Arc::get_mut(&mut self.owner).and_then(MemoryOwner::block_mut);
        let is_zero = self.access == Access::Private && block.is_some_and(|block| block.was_zero());
        if is_zero || !self.place.is_host() {
            return;
        }
        // SAFETY: the slot has `len` writable bytes here (`from_raw`, `heap` and `recycled`), and no Rust reference to them exists while `self` is borrowed
        // mutably. A peer may write shared memory at the same time, which is harmless, because every byte is valid here.
        unsafe { self.ptr.as_ptr().write_bytes(0, self.len) };
    }

    /// Whether the address is a multiple of `align`.
    pub fn is_aligned(&self, align: usize) -> bool {
        self.ptr.as_ptr().addr().is_multiple_of(align.max(1))
    }

    /// Shortens the slot to `len` bytes, for a result that is smaller than the slot.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Copies `from` to offset `at`, counted under `reason`. Either may be on a device.
    pub fn fill_from(&mut self, at: usize, from: &Buffer, reason: Reason) -> Result<(), SlotError> {
        let extent = self.checked_extent(at, from.len())?;
        // SAFETY: `from.len()` bytes are readable there; `extent` lies within our `len` writable bytes.
        unsafe { copy_across(from.copy_endpoint(), self.copy_endpoint(extent), extent.len(), reason) }
            .map_err(|cause| SlotError::DeviceCopy { cause })
    }

    /// Copies `from` to offset `at`, counted under `reason`.
    pub fn write(&mut self, at: usize, from: &[u8], reason: Reason) -> Result<(), SlotError> {
        self.write_numbers(at, from, reason)
    }

    /// Copies `from` to offset `at` in bytes, counted under `reason`. Neither the offset nor the slot need be aligned.
    pub fn write_numbers<T: Number>(&mut self, at: usize, from: &[T], reason: Reason) -> Result<(), SlotError> {
        let extent = self.checked_extent(at, size_of_val(from))?;
        let from = CopyEndpoint { ptr: from.as_ptr().cast_mut().cast(), place: Place::Host, copier: None };
        // SAFETY: a slice is readable, and numbers have no padding (Number); `extent` has as many bytes and lies within our `len`
        // writable ones.
        unsafe { copy_across(from, self.copy_endpoint(extent), extent.len(), reason) }
            .map_err(|cause| SlotError::DeviceCopy { cause })
    }

    /// Another slot over the same memory, for the next output that is written there. `None` for private memory, which has only one writer.
    pub fn again(&self) -> Option<Slot> {
        let Slot { ptr, len, place, access, ref owner, .. } = *self;
        (access == Access::Shared).then(|| Slot {
            ptr,
            len,
            place,
            access,
            owner: Arc::clone(owner),
            state: PhantomData,
        })
    }

    /// Joins `parts` to one Slot, if each part begins where the part before ends, in the same memory.
    pub fn joined(parts: Vec<Slot>) -> Option<Slot> {
        let mut parts = parts.into_iter();
        let mut whole = parts.next()?;
        for part in parts {
            let follows = part.ptr.addr().get() == whole.ptr.addr().get() + whole.len;
            let same =
                (part.place, part.access) == (whole.place, whole.access) && Arc::ptr_eq(&part.owner, &whole.owner);
            if !(follows && same) {
                return None;
            }
            whole.len += part.len;
        }
        Some(whole)
    }

    /// Whether no other Slot and no Buffer over the same memory exists.
    pub fn is_sole_user(&mut self) -> bool {
        Arc::get_mut(&mut self.owner).is_some()
    }

    /// Whether `data` lies in this slot already: it begins where the slot begins, in the same memory.
    pub fn begins_at(&self, data: &Buffer) -> bool {
        let same = data.memory_owner().is_some_and(|owner| Arc::ptr_eq(owner, &self.owner));
        same && data.place() == self.place && data.as_ptr().addr() == self.ptr.addr().get()
    }

    /// Whether any byte of `data` lies in this slot.
    pub fn overlaps(&self, data: &Buffer) -> bool {
        let (here, there) = (self.ptr.addr().get(), data.as_ptr().addr());
        here < there + data.len() && there < here + self.len
    }

    /// The bytes, if nobody else can access them.
    #[expect(clippy::disallowed_methods, reason = "`Access::Private`: nobody else writes them")]
    pub fn private_bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.access == Access::Shared || !self.place.is_host() {
            return None;
        }
        // SAFETY: `from_raw`, `heap` and `recycled`: initialised, ours alone, and borrowed mutably through `self`.
        Some(unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) })
    }

    /// The bytes as numbers to write, even if a peer may write them too. `None` for the reasons of [`Buffer::cells`].
    pub fn cells_mut<T: Number>(&mut self) -> Option<CellsMut<'_, T>> {
        let fits = self.is_aligned(align_of::<T>()) && self.len.is_multiple_of(size_of::<T>());
        if !self.place.is_host() || !(fits || self.len == 0) {
            return None;
        }
        let ptr = if self.len == 0 { NonNull::<T>::dangling() } else { self.ptr.cast::<T>() };
        // SAFETY: aligned and whole (checked), initialised and writable (`from_raw`, `heap` and `recycled`), and kept by `self` for
        // as long as it is borrowed.
        Some(unsafe { CellsMut::new(ptr, self.len / size_of::<T>()) })
    }

    /// Declares that every byte up to `len()` has been written.
    pub fn filled(self) -> Slot<Filled> {
        let Slot { ptr, len, place, access, owner, .. } = self;
        Slot { ptr, len, place, access, owner, state: PhantomData }
    }

    fn copy_endpoint(&self, extent: Extent) -> CopyEndpoint<'_> {
        // SAFETY: every extent here comes from `checked_extent`, so its offset is at most `len`.
        let ptr = unsafe { self.ptr.as_ptr().add(extent.offset()) };
        CopyEndpoint { ptr, place: self.place, copier: self.copier() }
    }

    /// The copier that copies the bytes if they are on a device.
    pub(crate) fn copier(&self) -> Option<&dyn DeviceCopier> {
        self.owner.copier()
    }

    fn checked_extent(&self, at: usize, len: usize) -> Result<Extent, SlotError> {
        Extent::new(at, len, self.len).map_err(|_| SlotError::Small { have: self.len, need: at.saturating_add(len) })
    }
}

impl Slot<Filled> {
    /// The result, readable.
    pub fn into_buffer(self) -> Buffer {
        // SAFETY: the Slot's constructors (`heap`, `recycled`, `from_raw`) promise all that `Buffer::from_raw` requires. The Slot is consumed, so it no longer
        // writes.
        unsafe { Buffer::from_raw(self.ptr, self.len, self.place, self.access, self.owner) }
    }
}

impl<S> Slot<S> {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the bytes are.
    pub fn place(&self) -> Place {
        self.place
    }

    /// How another process can open the slot, if it is device memory with an IPC handle.
    pub fn ipc(&self) -> Option<IpcWindow> {
        self.owner.ipc().map(|source| source.window(self.ptr))
    }

    /// How another process of this host can map the slot, if it can.
    pub fn share(&self) -> Option<SharedWindow<'_>> {
        let share = self.owner.share()?;
        Some(SharedWindow::new(share, self.ptr))
    }

    /// Why the bytes can no longer be trusted, if their memory was lost.
    pub fn fault(&self) -> Option<String> {
        self.owner.fault()
    }
}

impl<S> std::fmt::Debug for Slot<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slot({} bytes, {:?}, {:?})", self.len, self.place, self.access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copied_bytes;

    #[track_caller]
    fn check(len: usize, at: usize, write: &[u8], fits: bool) {
        assert_eq!(Slot::heap(len).write(at, write, Reason::Model).is_ok(), fits, "{} at {at} of {len}", write.len());
    }

    #[test]
    fn nothing_is_written_past_the_end() {
        check(4, 0, &[1, 2, 3, 4], true);
        check(4, 1, &[1, 2, 3, 4], false);
        check(4, 4, &[], true);
        check(4, 5, &[], false);
        check(4, usize::MAX, &[1], false);
    }

    #[track_caller]
    fn check_growth(mut slot: Slot, len: usize, copies: bool) {
        let had = slot.len();
        let bytes: Vec<u8> = (0..had).map(|n| n as u8).collect();
        slot.write(0, &bytes, Reason::Model).expect("its own length");
        let before = copied_bytes(Reason::Indices);
        slot.try_grow(len, had, Reason::Indices).expect("some MiB");
        assert_eq!(copied_bytes(Reason::Indices) - before, if copies { had as u64 } else { 0 });
        slot.write(len - 1, &[9], Reason::Model).expect("the last byte");
        let all = slot.filled().into_buffer();
        let all = all.private_bytes().expect("this process's own");
        assert_eq!((all.len(), &all[..had], all[len - 1]), (len, &bytes[..], 9));
    }

    #[test]
    fn a_slot_grows_and_large_ones_copy_nothing() {
        let part = |at: usize| {
            let mut block: Arc<dyn MemoryOwner> = Arc::new(Block::new(1 << 20));
            let ptr = Arc::get_mut(&mut block).and_then(MemoryOwner::block_mut).expect("it is one").as_ptr();
            // SAFETY: all callers stay within the block, whose bytes are always initialised.
            let ptr = unsafe { ptr.add(at) };
            // SAFETY: 1000 bytes of the block, which the Arc keeps and nobody else has.
            unsafe { Slot::from_raw(ptr, 1000, Place::Host, Access::Private, block) }
        };
        check_growth(Slot::heap(1000), 2000, true);
        if cfg!(miri) {
            // The MiB of the others take Miri minutes.
            return;
        }
        check_growth(Slot::heap(1000), 3 << 20, true);
        check_growth(Slot::heap(1 << 20), 3 << 20, false);
        check_growth(part(0), 3 << 20, false);
        // A slot that begins in the middle of a block cannot move its pages.
        check_growth(part(64), 3 << 20, true);
        let mut slot = Slot::heap(1 << 20);
        assert_eq!(slot.try_grow(usize::MAX, 1, Reason::Indices).map_err(|refused| refused.requested), Err(usize::MAX));
        assert_eq!(slot.len(), 1 << 20);
        assert!(Slot::try_heap(usize::MAX).is_err());
    }

    #[test]
    fn a_block_is_written_again_once_no_buffer_over_it_lives() {
        let mut slot = Slot::heap(64);
        let place = slot.as_mut_ptr();
        let buffer = slot.filled().into_buffer();
        let part = buffer.slice(Extent::new(16, 8, 64).expect("within"));
        assert!(Slot::recycled(buffer).is_none(), "a part of it lives");
        let mut slot = Slot::recycled(part).expect("the last one over the block");
        assert_eq!((slot.as_mut_ptr(), slot.len()), (place, 64));
        slot.write(60, &[1, 2, 3, 4], Reason::Model).expect("its last bytes");
        assert_eq!(slot.filled().into_buffer().read_u32(60), Some(0x0403_0201));
        for other in [Buffer::empty(), Buffer::from(vec![1, 2]), Buffer::from_numbers(vec![1u64])] {
            assert!(Slot::recycled(other).is_none());
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "a hundred MiB take Miri minutes, and nothing here is unsafe")]
    fn what_was_announced_is_given_at_once_only_out_of_the_pool() {
        let (whole, first) = (113 << 20, 1 << 20);
        let mut slot = Slot::try_announced(whole, first).expect("a MiB");
        assert_eq!(slot.len(), first);
        assert_eq!(Slot::try_announced(1000, first).expect("a KiB").len(), 1000);
        slot.try_grow(whole, first, Reason::Model).expect("some MiB");
        let last = slot.as_mut_ptr();
        drop(slot);
        // Another test may empty the pool in between.
        let mut again = Slot::try_announced(whole, first).expect("what there was");
        assert_eq!(again.len(), if again.as_mut_ptr() == last { whole } else { first });
    }

    #[test]
    fn numbers_are_written_at_any_offset_and_not_past_the_end() {
        let mut slot = Slot::heap(9);
        assert!(slot.write_numbers(1, &[0x0403_0201_u32, 0x0807_0605], Reason::Model).is_ok());
        assert_eq!(slot.write_numbers(2, &[1u32, 2], Reason::Model), Err(SlotError::Small { have: 9, need: 10 }));
        assert_eq!(slot.filled().into_buffer().private_bytes(), Some(&[0u8, 1, 2, 3, 4, 5, 6, 7, 8][..]));
    }

    /// Slots over parts of the same memory, which others may write too.
    fn shared_parts(extents: &[(usize, usize)]) -> Vec<Slot> {
        let block = Block::new(64);
        let ptr = block.as_ptr();
        let block: Arc<dyn MemoryOwner> = Arc::new(block);
        let part = |&(at, len): &(usize, usize)| {
            // SAFETY: all callers stay within the 64 bytes of the block.
            let ptr = unsafe { ptr.add(at) };
            // SAFETY: `len` bytes of the block, which the Arc keeps; `Access::Shared` allows the other Slots.
            unsafe { Slot::from_raw(ptr, len, Place::Host, Access::Shared, Arc::clone(&block)) }
        };
        extents.iter().map(part).collect()
    }

    #[test]
    fn slots_are_joined_only_if_they_lie_end_to_end() {
        let join = |extents: &[(usize, usize)]| Slot::joined(shared_parts(extents)).map(|slot| slot.len());
        assert_eq!(join(&[(0, 8), (8, 4), (12, 20)]), Some(32));
        assert_eq!(join(&[(8, 8)]), Some(8));
        for apart in [&[(0, 8), (9, 8)][..], &[(8, 8), (0, 8)], &[(0, 8), (0, 8)], &[]] {
            assert_eq!(join(apart), None, "{apart:?}");
        }
        let [first, other] = [(0, 8), (8, 8)].map(|extent| shared_parts(&[extent]).remove(0));
        assert!(Slot::joined(vec![first, other]).is_none());
    }

    #[test]
    fn a_slot_knows_who_else_uses_its_memory_and_what_lies_there() {
        let mut parts = shared_parts(&[(0, 8), (8, 8)]);
        let [first, second] = &mut parts[..] else { panic!("two") };
        assert!(!first.is_sole_user());
        let data = second.again().expect("it is shared").filled().into_buffer();
        assert!(second.begins_at(&data) && !first.begins_at(&data));
        assert!(second.overlaps(&data) && !first.overlaps(&data));
        drop((data, parts.pop()));
        assert!(parts[0].is_sole_user());
    }

    #[test]
    fn what_an_earlier_owner_left_is_cleared() {
        for len in [100, crate::POOLED_BYTES_MIN + 1000] {
            for recycles in [false, true] {
                let mut former = Slot::heap(len);
                former.write(0, &vec![7; len], Reason::Model).expect("its own length");
                let buffer = former.filled().into_buffer();
                let mut slot = if recycles { Slot::recycled(buffer).expect("a block") } else { Slot::heap(len) };
                slot.clear();
                let all = slot.filled().into_buffer();
                assert!(all.private_bytes().expect("this process's own").iter().all(|byte| *byte == 0));
            }
        }
        let mut part = shared_parts(&[(0, 8)]).remove(0);
        part.write(0, &[7; 8], Reason::Model).expect("its own length");
        part.clear();
        let mut found = [7; 8];
        part.filled().into_buffer().copy_to(&mut found, Reason::Model);
        assert_eq!(found, [0; 8]);
    }

    #[test]
    fn a_smaller_result_gives_a_smaller_buffer() {
        let mut slot = Slot::heap(64);
        slot.write(0, b"abc", Reason::Model).expect("fits");
        slot.truncate(3);
        assert_eq!(slot.filled().into_buffer().private_bytes(), Some(&b"abc"[..]));
    }
}
