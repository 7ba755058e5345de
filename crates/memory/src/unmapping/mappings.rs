//! Which mappings wait to be unmapped, and which piece is next?
//!
//! ```text
//!   Mappings ──► │ entry │ ........ mapping ........ │      the next piece is cut from the end
//!                    └──► │ entry │ ..... mapping ..... │
//! ```
//! The allocator adds mappings while it frees memory, so the list must not allocate. Each entry lies in the first bytes of its own mapping.

use std::ptr::NonNull;

use crate::headroom::mapped;
use crate::page::PAGE_BYTES_MIN;

/// Pieces begin at a multiple of this if possible, because the kernel must split a huge page that is only partly unmapped.
const HUGE_PAGE: usize = 2 << 20;

/// Private memory that nobody uses, of whole pages. [`Mapping::unmap`] unmaps it.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// Whether [`crate::headroom`] counts it.
    is_counted: bool,
}

// SAFETY: nobody but the owner of this value uses the memory, and mappings have no thread affinity.
unsafe impl Send for Mapping {}

impl Mapping {
    /// # Safety
    /// The `bytes` bytes from `start` on are whole pages of an anonymous mapping, readable and writable. The caller owns them, and nobody uses them any more.
    pub(crate) unsafe fn new(start: NonNull<u8>, bytes: usize, is_counted: bool) -> Mapping {
        debug_assert!(
            bytes >= PAGE_BYTES_MIN && bytes.is_multiple_of(PAGE_BYTES_MIN),
            "{bytes} bytes are not whole pages"
        );
        Mapping { start, bytes, is_counted }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The same, counted by [`crate::headroom`] until it is unmapped.
    pub(super) fn counted(self) -> Mapping {
        if !self.is_counted {
            mapped(0, self.bytes);
        }
        Mapping { is_counted: true, ..self }
    }

    /// Unmaps the mapping in one call of the kernel.
    pub(super) fn unmap(self) {
        self.unmap_by(|start, bytes| {
            // SAFETY: `new`'s caller gave the range up, `split` cuts it into ranges that do not overlap, and this value is consumed.
            unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
        });
    }

    /// Calls `unmap` with the range, which it must unmap. Then the range is not counted any more.
    pub(super) fn unmap_by(self, unmap: impl FnOnce(NonNull<u8>, usize)) {
        unmap(self.start, self.bytes);
        if self.is_counted {
            mapped(self.bytes, 0);
        }
    }

    /// Cuts off the last `bytes` bytes, or a few more. Returns the rest and the cut piece. If the rest would be too small, the piece is the whole mapping.
    fn split(self, bytes: usize) -> (Option<Mapping>, Mapping) {
        let start = self.start.addr().get();
        let cut = start.saturating_add(self.bytes).saturating_sub(bytes);
        let cut = cut - cut % HUGE_PAGE;
        // Addresses are multiples of a page, so what is left has at least one page.
        let Some(left) = cut.checked_sub(start).filter(|left| *left > 0) else { return (None, self) };
        // SAFETY: `left` is less than the mapping's bytes, because at least one byte is cut off.
        let behind = unsafe { self.start.add(left) };
        let last = Mapping { start: behind, bytes: self.bytes - left, is_counted: self.is_counted };
        (Some(Mapping { bytes: left, ..self }), last)
    }
}

/// The content of the first bytes of a waiting mapping.
struct Entry {
    bytes: usize,
    next: Option<NonNull<Entry>>,
}

const _: () = assert!(size_of::<Entry>() <= PAGE_BYTES_MIN && PAGE_BYTES_MIN.is_multiple_of(align_of::<Entry>()));

/// Waiting mappings, in the order in which they were added. All are counted by [`crate::headroom`].
pub(super) struct Mappings {
    first: Option<NonNull<Entry>>,
    last: Option<NonNull<Entry>>,
    /// Bytes that wait or are being unmapped.
    bytes: usize,
    /// Bytes that are being unmapped.
    current_bytes: usize,
    unmapped_pieces: u64,
}

// SAFETY: the entries lie in mappings that the list alone owns, and mappings have no thread affinity.
unsafe impl Send for Mappings {}

impl Mappings {
    pub(super) const fn new() -> Mappings {
        Mappings { first: None, last: None, bytes: 0, current_bytes: 0, unmapped_pieces: 0 }
    }

    /// See the field of this name.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// See the field of this name.
    pub(super) fn current_bytes(&self) -> usize {
        self.current_bytes
    }

    /// Adds a mapping that is counted.
    pub(super) fn push(&mut self, mapping: Mapping) {
        self.bytes += mapping.bytes;
        let entry = mapping.start.cast::<Entry>();
        // SAFETY: the mapping is writable, nobody else uses it, it starts at a page, and a page has room for an entry.
        unsafe { entry.write(Entry { bytes: mapping.bytes, next: None }) };
        match self.last.replace(entry) {
            // SAFETY: an entry of this list. This function wrote it, and its mapping is not unmapped yet.
            Some(before) => unsafe { (*before.as_ptr()).next = Some(entry) },
            None => self.first = Some(entry),
        }
    }

    /// The next piece, of `bytes` bytes or a few more. The caller unmaps it and calls [`Mappings::unmapped`].
    pub(super) fn take(&mut self, bytes: usize) -> Option<Mapping> {
        let first = self.first?;
        // SAFETY: an entry of this list, which `push` wrote; its mapping is not unmapped yet.
        let entry = unsafe { first.read() };
        // SAFETY: `push` was given this mapping, and pieces that were cut from its end are not in `entry.bytes` any more.
        let mapping = unsafe { Mapping::new(first.cast(), entry.bytes, true) };
        let (left, piece) = mapping.split(bytes);
        if let Some(left) = left {
            // SAFETY: as above. What is left has the entry.
            unsafe { (*first.as_ptr()).bytes = left.bytes };
        } else {
            self.first = entry.next;
            if entry.next.is_none() {
                self.last = None;
            }
        }
        self.current_bytes += piece.bytes;
        Some(piece)
    }

    /// Call this after a piece of `bytes` bytes was unmapped.
    pub(super) fn unmapped(&mut self, bytes: usize) {
        self.current_bytes -= bytes;
        self.bytes -= bytes;
        self.unmapped_pieces += 1;
    }

    /// How many pieces were unmapped so far.
    pub(super) fn unmapped_pieces(&self) -> u64 {
        self.unmapped_pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Memory that the tests use as mappings. They do not unmap it.
    struct Memory(Vec<u64>);

    impl Memory {
        fn new() -> Memory {
            Memory(vec![0; (20 * MIB) / 8])
        }

        /// The first multiple of a huge page in it.
        fn start(&mut self) -> NonNull<u8> {
            let start = NonNull::from(self.0.as_mut_slice()).cast::<u8>();
            let skip = start.addr().get().next_multiple_of(HUGE_PAGE) - start.addr().get();
            // SAFETY: `skip` is less than a huge page, and the memory has 10 of them.
            unsafe { start.add(skip) }
        }
    }

    /// Adds mappings at these offsets and of these sizes, in pages. Checks where the pieces are, if each has `piece` pages.
    #[track_caller]
    fn check(mappings: &[(usize, usize)], piece: usize, expected: &[(usize, usize)]) {
        let mut memory = Memory::new();
        let (base, mut list, mut found) = (memory.start(), Mappings::new(), Vec::new());
        for (offset, pages) in mappings {
            // SAFETY: all tests use less than 17 MiB from `base` on.
            let start = unsafe { base.add(offset * PAGE_BYTES_MIN) };
            // SAFETY: it is this test's own memory, and it is never unmapped.
            list.push(unsafe { Mapping::new(start, pages * PAGE_BYTES_MIN, true) });
        }
        let all: usize = mappings.iter().map(|(_, pages)| pages * PAGE_BYTES_MIN).sum();
        while let Some(piece) = list.take(piece * PAGE_BYTES_MIN) {
            let offset = piece.start.addr().get() - base.addr().get();
            found.push((offset / PAGE_BYTES_MIN, piece.bytes / PAGE_BYTES_MIN));
            assert_eq!(list.current_bytes(), piece.bytes);
            list.unmapped(piece.bytes);
            let unmapped: usize = found.iter().map(|(_, pages)| pages * PAGE_BYTES_MIN).sum();
            assert_eq!((list.bytes(), list.current_bytes()), (all - unmapped, 0));
        }
        assert_eq!(found, expected);
        assert!(list.first.is_none() && list.last.is_none());
    }

    #[test]
    fn mappings_are_unmapped_in_their_order_and_each_from_its_end() {
        check(&[], 512, &[]);
        check(&[(0, 1)], 512, &[(0, 1)]);
        check(&[(0, 512), (1024, 512)], 512, &[(0, 512), (1024, 512)]);
        check(&[(0, 2048), (4096, 1)], 512, &[(1536, 512), (1024, 512), (512, 512), (0, 512), (4096, 1)]);
    }

    #[test]
    fn pieces_begin_at_a_huge_page() {
        check(&[(3, 2048)], 512, &[(1536, 515), (1024, 512), (512, 512), (3, 509)]);
        check(&[(3, 1024)], 1, &[(1024, 3), (512, 512), (3, 509)]);
        check(&[(512, 100)], 50, &[(512, 100)]);
    }

    #[test]
    fn a_mapping_may_be_added_after_the_list_was_empty() {
        let mut memory = Memory::new();
        let (start, mut list) = (memory.start(), Mappings::new());
        for _ in 0..3 {
            // SAFETY: it is this test's own memory, and it is never unmapped.
            list.push(unsafe { Mapping::new(start, PAGE_BYTES_MIN, true) });
            assert_eq!(list.take(PAGE_BYTES_MIN).map(|piece| piece.bytes), Some(PAGE_BYTES_MIN));
            list.unmapped(PAGE_BYTES_MIN);
            assert!(list.take(PAGE_BYTES_MIN).is_none());
        }
    }
}
