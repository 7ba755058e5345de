//! How is a run of readable bytes held, shared and sliced?

use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;

use crate::copy::{CopyEndpoint, Reason, copy_counted};
use crate::{Access, Cells, Extent, IpcWindow, MemoryOwner, Number, Place, SharedWindow};

/// Readable bytes: where they are, how many, and what keeps them alive. Cloning and slicing copy no bytes.
#[derive(Clone)]
pub struct Buffer {
    ptr: NonNull<u8>,
    len: usize,
    place: Place,
    access: Access,
    owner: Option<Arc<dyn MemoryOwner>>,
}

// SAFETY: the bytes are only read through a Buffer, and `owner` (Send + Sync) holds them wherever the Buffer goes.
unsafe impl Send for Buffer {}
// SAFETY: as above; no method of a shared Buffer writes.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer without bytes.
    pub fn empty() -> Buffer {
        Buffer { ptr: NonNull::dangling(), len: 0, place: Place::Host, access: Access::Private, owner: None }
    }

    /// `len` bytes at `ptr`, alive as long as `owner` is.
    ///
    /// # Safety
    /// `ptr` points to `len` initialised bytes at `place` that stay mapped while `owner` lives; with [`Access::Private`]
    /// nobody writes them while the Buffer or a clone of it lives.
    pub unsafe fn from_raw(
        ptr: NonNull<u8>,
        len: usize,
        place: Place,
        access: Access,
        owner: Arc<dyn MemoryOwner>,
    ) -> Buffer {
        Buffer { ptr, len, place, access, owner: Some(owner) }
    }

    /// A buffer over the numbers of a runtime, without a copy.
    pub fn from_numbers<T: Number>(numbers: Vec<T>) -> Buffer {
        let len = size_of_val(numbers.as_slice());
        let ptr = NonNull::new(numbers.as_ptr().cast_mut().cast()).expect("a vector's pointer is never null");
        // SAFETY: `len` bytes of numbers, initialised and without padding (Number); the vector is moved into `owner`, which
        // moves the handle and not the elements, and nobody can reach it there to write.
        unsafe { Buffer::from_raw(ptr, len, Place::Host, Access::Private, Arc::new(numbers)) }
    }

    /// Joins `parts` to one Buffer without a copy, if each part begins where the part before ends, in the same memory.
    pub fn joined(parts: &[&Buffer]) -> Option<Buffer> {
        let (first, rest) = parts.split_first()?;
        let owner = first.owner.as_ref()?;
        let mut len = first.len;
        for part in rest {
            let same = part.owner.as_ref().is_some_and(|other| Arc::ptr_eq(owner, other));
            if !same || part.place != first.place || part.ptr.as_ptr().addr() != first.ptr.as_ptr().addr() + len {
                return None;
            }
            len += part.len;
        }
        Some(Buffer { len, ..(*first).clone() })
    }

    /// The number of the owner that keeps the bytes alive. All Buffers with the same owner return the same number. Without an owner it is 0. Once the last of
    /// these Buffers is dropped, the number may be reused for another owner.
    pub fn owner(&self) -> usize {
        self.owner.as_ref().map_or(0, |owner| Arc::as_ptr(owner).cast::<()>().addr())
    }

    /// The owner that keeps the bytes alive.
    pub(crate) fn memory_owner(&self) -> Option<&Arc<dyn MemoryOwner>> {
        self.owner.as_ref()
    }

    /// Turns the Buffer into the owner that keeps its bytes alive.
    pub(crate) fn into_owner(self) -> Option<Arc<dyn MemoryOwner>> {
        self.owner
    }

    /// Bytes of memory that stay in use while this Buffer lives: all bytes of the memory that it is a slice of, or its own length if the owner does not say how
    /// much that is.
    pub fn held_bytes(&self) -> usize {
        self.owner.as_ref().and_then(|owner| owner.held_bytes()).unwrap_or(0).max(self.len)
    }

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

    /// Who may write the bytes while they are read.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The address, for a runtime that takes pointers. Valid while this Buffer, a clone or a slice lives.
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    /// Whether the address is a multiple of `align`.
    pub fn is_aligned(&self, align: usize) -> bool {
        self.ptr.as_ptr().addr().is_multiple_of(align.max(1))
    }

    /// Why the bytes can no longer be trusted, if their memory was lost.
    pub fn fault(&self) -> Option<String> {
        self.owner.as_ref().and_then(|owner| owner.fault())
    }

    /// How another process can open the bytes, if they are device memory with an IPC handle.
    pub fn ipc(&self) -> Option<IpcWindow> {
        self.owner.as_ref().and_then(|owner| owner.ipc()).map(|source| source.window(self.ptr))
    }

    /// How another process of this host can map the bytes, if it can.
    pub fn share(&self) -> Option<SharedWindow<'_>> {
        let share = self.owner.as_deref()?.share()?;
        Some(SharedWindow::new(share, self.ptr))
    }

    /// The part of this Buffer that `extent` names.
    ///
    /// # Panics
    /// If the extent was made for a longer range. That is a bug of the server: `Extent::new` checks the numbers of clients.
    pub fn slice(&self, extent: Extent) -> Buffer {
        assert!(extent.end() <= self.len, "extent up to {} of a buffer of {}", extent.end(), self.len);
        // SAFETY: `offset <= end <= len`, so the result stays within or one past the memory that `owner` holds.
        let ptr = unsafe { self.ptr.add(extent.offset()) };
        Buffer { ptr, len: extent.len(), ..self.clone() }
    }

    /// The bytes, if no other process can write them. Memory that a peer can write is never borrowed as a slice.
    #[expect(clippy::disallowed_methods, reason = "`Access::Private`: nobody writes them")]
    pub fn private_bytes(&self) -> Option<&[u8]> {
        if self.access == Access::Shared || !self.place.is_host() {
            return None;
        }
        // SAFETY: `from_raw` promised `len` initialised bytes that nobody writes while we live (Access::Private);
        // for the empty buffer the pointer is dangling but aligned and the length 0.
        Some(unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) })
    }

    /// The bytes as a slice of numbers. `None` if a peer may write them; use [`Buffer::cells`] then. `None` also for the reasons for which [`Buffer::cells`]
    /// returns `None`.
    #[expect(clippy::disallowed_methods, reason = "`Access::Private`: nobody writes them")]
    pub fn numbers<T: Number>(&self) -> Option<&[T]> {
        if self.access == Access::Shared {
            return None;
        }
        let (ptr, len) = self.array::<T>()?;
        // SAFETY: `array` found whole, aligned values inside the mapped range, of which every bit pattern is a Number. Nobody
        // writes them (Access::Private), and the lifetime is that of `self`, which holds `owner`.
        Some(unsafe { std::slice::from_raw_parts(ptr.as_ptr(), len) })
    }

    /// The bytes as numbers of type `T`, even if a peer may write them. `None` if the address is not aligned for `T`, if the length is not a
    /// multiple of its size, or if the bytes are not on this host.
    pub fn cells<T: Number>(&self) -> Option<Cells<'_, T>> {
        let (ptr, len) = self.array::<T>()?;
        // SAFETY: `array` found whole, aligned values inside the mapped range, which `self` keeps for as long as it is borrowed.
        Some(unsafe { Cells::new(ptr, len) })
    }

    fn array<T: Number>(&self) -> Option<(NonNull<T>, usize)> {
        if self.len == 0 && self.place.is_host() {
            return Some((NonNull::dangling(), 0));
        }
        let fits = self.is_aligned(align_of::<T>()) && self.len.is_multiple_of(size_of::<T>());
        (self.place.is_host() && fits).then(|| (self.ptr.cast::<T>(), self.len / size_of::<T>()))
    }

    /// The little-endian u32 at `at`. Each byte is read exactly once, so the value that the caller checks is the value that it uses. `None` past the end.
    pub fn read_u32(&self, at: usize) -> Option<u32> {
        if at.checked_add(4)? > self.len || !self.place.is_host() {
            return None;
        }
        // SAFETY: `at + 4 <= len`.
        let from = unsafe { self.ptr.as_ptr().add(at) };
        let mut word = [0u8; 4];
        for (i, byte) in word.iter_mut().enumerate() {
            // SAFETY: `at + i < at + 4 <= len`.
            let from = unsafe { from.add(i) };
            // SAFETY: a byte of the range just named; volatile, because a peer may write it at this moment.
            *byte = unsafe { from.read_volatile() };
        }
        Some(u32::from_le_bytes(word))
    }

    /// Copies all bytes to the front of `to`, and counts them under `reason`.
    ///
    /// # Panics
    /// If `to` is shorter, or if the bytes are on a device.
    pub fn copy_to(&self, to: &mut [u8], reason: Reason) {
        assert!(to.len() >= self.len && self.place.is_host(), "{} bytes into {}", self.len, to.len());
        // SAFETY: `len` bytes are readable here and, by the assertion, writable there.
        unsafe { copy_counted(self.ptr.as_ptr(), to.as_mut_ptr(), self.len, reason) };
    }

    pub(crate) fn copy_endpoint(&self) -> CopyEndpoint<'_> {
        let copier = self.owner.as_ref().and_then(|owner| owner.copier());
        CopyEndpoint { ptr: self.ptr.as_ptr(), place: self.place, copier }
    }
}

impl From<Bytes> for Buffer {
    fn from(bytes: Bytes) -> Buffer {
        let ptr = NonNull::new(bytes.as_ptr().cast_mut()).expect("a slice's pointer is never null");
        let len = bytes.len();
        // `Bytes` is immutable, and its storage does not move when the handle moves. So the pointer is valid as long as `owner` lives.
        Buffer { ptr, len, place: Place::Host, access: Access::Private, owner: Some(Arc::new(bytes)) }
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Buffer {
        Buffer::from(Bytes::from(bytes))
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes, {:?}, {:?})", self.len, self.place, self.access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Slot;

    #[test]
    fn a_slice_keeps_the_whole_alive_and_copies_nothing() {
        let whole = Buffer::from((0u8..=255).collect::<Vec<_>>());
        let part = whole.slice(Extent::new(16, 4, whole.len()).expect("within"));
        drop(whole);
        assert_eq!(part.private_bytes(), Some(&[16u8, 17, 18, 19][..]));
    }

    #[test]
    fn a_slice_holds_as_much_as_the_whole() {
        let of = |whole: Buffer| whole.slice(Extent::new(0, 8, whole.len()).expect("within")).held_bytes();
        assert_eq!(of(Slot::heap(1 << 16).filled().into_buffer()), 1 << 16);
        assert_eq!(of(Buffer::from_numbers(vec![1u32; 100])), 400);
        assert_eq!(Buffer::empty().held_bytes(), 0);
    }

    #[test]
    fn numbers_need_alignment_and_whole_values() {
        let block = Slot::heap(16).filled().into_buffer();
        assert_eq!(block.numbers::<f64>().map(<[f64]>::len), Some(2));
        let odd = block.slice(Extent::new(1, 8, 16).expect("within"));
        assert!(odd.numbers::<f32>().is_none());
        assert!(odd.aligned(4).numbers::<f32>().is_some());
        assert!(block.slice(Extent::new(0, 7, 16).expect("within")).numbers::<u16>().is_none());
    }

    #[test]
    fn going_to_a_socket_and_back_keeps_the_address() {
        let buffer = Slot::heap(100).filled().into_buffer();
        let at = buffer.as_ptr();
        let bytes = buffer.into_bytes();
        assert_eq!(bytes.as_ptr(), at);
        assert_eq!(Buffer::from(bytes).as_ptr(), at);
    }

    #[test]
    fn numbers_become_bytes_where_they_lie() {
        let numbers = vec![1i32, -1];
        let at = numbers.as_ptr();
        let buffer = Buffer::from_numbers(numbers);
        assert_eq!(buffer.as_ptr(), at.cast());
        assert_eq!(buffer.private_bytes(), Some(&[1, 0, 0, 0, 255, 255, 255, 255][..]));
        assert!(Buffer::from_numbers(Vec::<f64>::new()).is_empty());
    }

    #[test]
    fn parts_are_joined_only_if_they_lie_end_to_end() {
        let whole = Buffer::from(vec![7u8; 12]);
        let part = |offset| whole.slice(Extent::new(offset, 4, 12).expect("within"));
        let join = |parts: [&Buffer; 2]| Buffer::joined(&parts).map(|b| (b.as_ptr(), b.len()));
        assert_eq!(join([&part(4), &part(8)]), Some((part(4).as_ptr(), 8)));
        assert_eq!(join([&part(0), &part(8)]), None);
        assert_eq!(join([&part(4), &part(0)]), None);
        assert_eq!(join([&part(4), &part(4)]), None);
        assert_eq!(join([&part(0), &Buffer::from(vec![7u8; 4])]), None);
        assert!(Buffer::joined(&[]).is_none());
    }

    #[test]
    fn a_word_past_the_end_is_not_read() {
        let buffer = Buffer::from(vec![1, 0, 0, 0, 9]);
        assert_eq!(buffer.read_u32(0), Some(1));
        assert_eq!(buffer.read_u32(2), None);
        assert_eq!(buffer.read_u32(usize::MAX), None);
    }
}
