//! Where does the memory of the program's large allocations come from, and what happens to it when they are freed?
//!
//! The system's allocator keeps up to 64 MiB of freed memory at the end of each heap, and has no call that returns it. So a large allocation gets its own
//! mapping. Touching fresh pages takes longer than a run of many models, so freed mappings are kept for the next allocation of their size. [`trim`] returns the
//! kept mappings that were not used lately to the system. [`crate::unmapping`] says which thread unmaps a mapping.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{MutexGuard, PoisonError};

use nerite_locks::Mutex;

use crate::page::{PAGE_BYTES_MAX, PAGE_BYTES_MIN};
use crate::unmapping::{self, Mapping};

/// Allocations of this size and more have a mapping of their own.
const LARGE_BYTES_MIN: usize = 256 << 10;
/// A mapping may be larger than its allocation, by at most one part in this many, so that allocations of similar size can reuse it.
const CLASSES_PER_DOUBLING: usize = 8;
/// The most mappings that are kept.
const KEPT_MAX: usize = 64;

/// A mapping that is not in use.
#[derive(Clone, Copy)]
struct Kept {
    start: *mut u8,
    bytes: usize,
    idle_rounds: u32,
}

/// Makes large allocations, and keeps the mappings of freed ones.
struct Large {
    free_list: Mutex<FreeList>,
    /// Bytes that may be kept.
    kept_bytes_max: AtomicUsize,
}

/// The kept mappings. They are in an array, because the allocator itself must not allocate.
struct FreeList {
    kept: [Kept; KEPT_MAX],
    count: usize,
    bytes: usize,
}

// SAFETY: a kept mapping belongs to the list alone, and mappings have no thread affinity.
unsafe impl Send for FreeList {}

/// The instance of the program. It keeps nothing until [`keep`] is called.
static LARGE: Large = Large::new();

/// Keeps freed mappings, at most `bytes`.
pub(crate) fn keep(bytes: usize) {
    LARGE.kept_bytes_max.store(bytes, Ordering::Relaxed);
}

/// Lowers the limit on kept bytes to `bytes`, if that is less.
pub(crate) fn limit(bytes: usize) {
    LARGE.kept_bytes_max.fetch_min(bytes, Ordering::Relaxed);
}

/// As [`GlobalAlloc::alloc`].
///
/// # Safety
/// The caller keeps the contract of [`GlobalAlloc::alloc`].
#[inline]
pub(crate) unsafe fn alloc(layout: Layout) -> *mut u8 {
    if is_large(layout) {
        return LARGE.alloc(layout.size());
    }
    // SAFETY: our caller keeps the same contract.
    unsafe { System.alloc(layout) }
}

/// As [`GlobalAlloc::alloc_zeroed`].
///
/// # Safety
/// The caller keeps the contract of [`GlobalAlloc::alloc_zeroed`].
#[inline]
pub(crate) unsafe fn alloc_zeroed(layout: Layout) -> *mut u8 {
    if is_large(layout) {
        return LARGE.alloc_zeroed(layout.size());
    }
    // SAFETY: our caller keeps the same contract.
    unsafe { System.alloc_zeroed(layout) }
}

/// As [`GlobalAlloc::dealloc`].
///
/// # Safety
/// The caller keeps the contract of [`GlobalAlloc::dealloc`], and `ptr` came from a function of this module.
#[inline]
pub(crate) unsafe fn dealloc(ptr: *mut u8, layout: Layout) {
    if is_large(layout) {
        // SAFETY: a large layout has a mapping of `mapping_bytes`, which our caller gives back.
        unsafe { LARGE.dealloc(ptr, layout.size()) };
    } else {
        // SAFETY: our caller keeps the same contract. An allocation that is not large came from the system's allocator.
        unsafe { System.dealloc(ptr, layout) };
    }
}

/// As [`GlobalAlloc::realloc`]. The kernel moves the pages of a large allocation, without copying.
///
/// # Safety
/// The caller keeps the contract of [`GlobalAlloc::realloc`], and `ptr` came from a function of this module.
#[inline]
#[expect(clippy::disallowed_methods, reason = "an allocation that moves is no tensor yet")]
pub(crate) unsafe fn realloc(ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
    // SAFETY: the caller promises that `size`, rounded up to the alignment, does not overflow, and the alignment is a layout's.
    let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
    match (is_large(layout), is_large(new)) {
        // SAFETY: our caller keeps the same contract. Neither size is large, so the allocation came from the system's allocator and stays there.
        (false, false) => unsafe { System.realloc(ptr, layout, size) },
        // SAFETY: a large layout has a mapping of `mapping_bytes`.
        (true, true) => unsafe { resize(ptr, mapping_bytes(layout.size()), mapping_bytes(size)) },
        _ => {
            // SAFETY: the caller promises that `size` is not zero.
            let moved = unsafe { alloc(new) };
            if !moved.is_null() {
                // SAFETY: both allocations have at least the smaller of the two sizes, and the new one was just made, so they do not overlap.
                unsafe { ptr::copy_nonoverlapping(ptr, moved, layout.size().min(size)) };
                // SAFETY: our caller keeps the same contract.
                unsafe { dealloc(ptr, layout) };
            }
            moved
        }
    }
}

/// Unmaps the kept mappings that were unused during the last `rounds_max` calls of this function. Returns their size in bytes.
pub(crate) fn trim(rounds_max: u32) -> usize {
    LARGE.trim(rounds_max)
}

/// Takes the mapping that was kept last, to unmap it.
pub(crate) fn pop() -> Option<Mapping> {
    LARGE.pop().and_then(Kept::into_mapping)
}

/// Whether an allocation gets its own mapping. Mappings are aligned to pages, so an allocation with a larger alignment does not get one.
#[inline]
pub(crate) fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE_BYTES_MIN && layout.align() <= PAGE_BYTES_MIN && !cfg!(miri)
}

/// Bytes of the mapping for an allocation of `size` bytes.
pub(crate) fn mapping_bytes(size: usize) -> usize {
    let step = (1usize << size.ilog2()) / CLASSES_PER_DOUBLING;
    // A layout's size is at most `isize::MAX`, so rounding up does not overflow.
    size.next_multiple_of(step.max(PAGE_BYTES_MIN))
}

fn map(bytes: usize) -> *mut u8 {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory of ours.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, prot, flags, -1, 0) };
    if start == libc::MAP_FAILED { ptr::null_mut() } else { start.cast() }
}

/// # Safety
/// `start` is a mapping of `had` bytes that the caller owns.
unsafe fn resize(start: *mut u8, had: usize, bytes: usize) -> *mut u8 {
    if had == bytes {
        return start;
    }
    // If the rest begins at a page, another thread may unmap it. Otherwise `mremap` below cuts it off on this thread.
    if bytes < had && bytes.is_multiple_of(PAGE_BYTES_MAX) {
        // SAFETY: the rest lies within the mapping.
        let rest = unsafe { start.add(bytes) };
        unmap(Kept { start: rest, bytes: had - bytes, idle_rounds: 0 });
        return start;
    }
    // SAFETY: the caller owns the whole mapping, and gives up its old address if it moves.
    let moved = unsafe { libc::mremap(start.cast(), had, bytes, libc::MREMAP_MAYMOVE) };
    if moved == libc::MAP_FAILED { ptr::null_mut() } else { moved.cast() }
}

impl Kept {
    /// `None` if its address is null, which no mapping has.
    fn into_mapping(self) -> Option<Mapping> {
        let start = NonNull::new(self.start)?;
        // SAFETY: a Kept has whole pages of a mapping, nobody uses them, and it is consumed here.
        Some(unsafe { Mapping::new(start, self.bytes, false) })
    }
}

fn unmap(kept: Kept) {
    if let Some(mapping) = kept.into_mapping() {
        unmapping::unmap(mapping);
    }
}

impl Large {
    const fn new() -> Large {
        let kept = [Kept { start: ptr::null_mut(), bytes: 0, idle_rounds: 0 }; KEPT_MAX];
        Large { free_list: Mutex::new(FreeList { kept, count: 0, bytes: 0 }), kept_bytes_max: AtomicUsize::new(0) }
    }

    /// A mapping for `size` bytes, or null.
    fn alloc(&self, size: usize) -> *mut u8 {
        let bytes = mapping_bytes(size);
        self.take(bytes).unwrap_or_else(|| map(bytes))
    }

    /// As [`Large::alloc`], with the first `size` bytes zero.
    fn alloc_zeroed(&self, size: usize) -> *mut u8 {
        let bytes = mapping_bytes(size);
        let Some(start) = self.take(bytes) else { return map(bytes) };
        // SAFETY: the mapping has `bytes`, which are at least `size`, and was just taken by us alone.
        unsafe { start.write_bytes(0, size) };
        start
    }

    /// # Safety
    /// `start` is a mapping that [`Large::alloc`] made for `size` bytes, or [`resize`], and that the caller gives up.
    unsafe fn dealloc(&self, start: *mut u8, size: usize) {
        let freed = Kept { start, bytes: mapping_bytes(size), idle_rounds: 0 };
        let mut list = self.free_list();
        let bytes = list.bytes.saturating_add(freed.bytes);
        if list.count < KEPT_MAX && bytes <= self.kept_bytes_max.load(Ordering::Relaxed) {
            let at = list.count;
            list.kept[at] = freed;
            list.count += 1;
            list.bytes = bytes;
        } else {
            drop(list);
            unmap(freed);
        }
    }

    fn take(&self, bytes: usize) -> Option<*mut u8> {
        let mut list = self.free_list();
        // The mapping that was freed last is most likely still in the processor's cache.
        let at = list.kept[..list.count].iter().rposition(|kept| kept.bytes == bytes)?;
        Some(list.remove(at).start)
    }

    fn pop(&self) -> Option<Kept> {
        let mut list = self.free_list();
        let last = list.count.checked_sub(1)?;
        Some(list.remove(last))
    }

    fn trim(&self, rounds_max: u32) -> usize {
        let (mut freed, mut at) = (0, 0);
        loop {
            let mut list = self.free_list();
            while at < list.count && list.kept[at].idle_rounds < rounds_max {
                list.kept[at].idle_rounds += 1;
                at += 1;
            }
            if at >= list.count {
                return freed;
            }
            let stale = list.remove(at);
            drop(list);
            freed += stale.bytes;
            unmap(stale);
        }
    }

    fn free_list(&self) -> MutexGuard<'_, FreeList> {
        self.free_list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FreeList {
    /// Removes one mapping. The others keep their order.
    fn remove(&mut self, at: usize) -> Kept {
        let kept = self.kept[at];
        self.kept.copy_within(at + 1..self.count, at);
        self.count -= 1;
        self.bytes -= kept.bytes;
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = (20 << 20) + 17;

    #[track_caller]
    fn kept(large: &Large, count: usize) {
        let list = large.free_list();
        assert_eq!((list.count, list.bytes), (count, count * mapping_bytes(SIZE)));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the allocation is the test's own")]
    fn mappings_are_kept_for_the_next_of_their_size_and_unmapped_when_they_lie_idle() {
        let large = Large::new();
        large.kept_bytes_max.store(64 << 20, Ordering::Relaxed);
        let first = large.alloc(SIZE);
        // SAFETY: a mapping of at least `SIZE` bytes.
        unsafe { first.write_bytes(7, SIZE) };
        // SAFETY: it was made for `SIZE` bytes.
        unsafe { large.dealloc(first, SIZE) };
        kept(&large, 1);
        let other = large.alloc(SIZE / 2);
        let again = large.alloc_zeroed(SIZE);
        assert!(other != first && again == first);
        // SAFETY: a mapping of at least `SIZE` bytes, which are zero.
        assert!(unsafe { std::slice::from_raw_parts(again, SIZE) }.iter().all(|byte| *byte == 0));
        // SAFETY: as above.
        unsafe { large.dealloc(again, SIZE) };
        assert_eq!([large.trim(2), large.trim(2)], [0, 0]);
        kept(&large, 1);
        assert_eq!(large.trim(2), mapping_bytes(SIZE));
        kept(&large, 0);
        large.kept_bytes_max.store(0, Ordering::Relaxed);
        // SAFETY: it was made for so many bytes.
        unsafe { large.dealloc(other, SIZE / 2) };
        kept(&large, 0);
    }

    #[test]
    fn no_more_is_kept_than_may_be() {
        let large = Large::new();
        large.kept_bytes_max.store(2 * mapping_bytes(SIZE), Ordering::Relaxed);
        for mapping in [(); 3].map(|()| large.alloc(SIZE)) {
            // SAFETY: it was made for `SIZE` bytes.
            unsafe { large.dealloc(mapping, SIZE) };
        }
        kept(&large, 2);
        assert_eq!(large.trim(0), 2 * mapping_bytes(SIZE));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the allocation is the test's own")]
    fn an_allocation_keeps_its_content_whichever_way_it_grows_or_shrinks() {
        let layout = |size| Layout::from_size_align(size, 64).expect("a power of two");
        let mut size = 101;
        // SAFETY: a layout that is not empty.
        let mut ptr = unsafe { alloc(layout(size)) };
        // SAFETY: there are 101 bytes.
        unsafe { ptr.write_bytes(5, size) };
        for next in [200, SIZE, SIZE + 1, 3 * SIZE, SIZE, 101] {
            // SAFETY: `size` is what it was allocated or reallocated with last.
            ptr = unsafe { realloc(ptr, layout(size), next) };
            size = next;
            // SAFETY: it has 101 bytes and more, which were written.
            assert_eq!(unsafe { std::slice::from_raw_parts(ptr, 101) }, [5; 101]);
        }
        // SAFETY: as above.
        unsafe { dealloc(ptr, layout(size)) };
    }

    #[test]
    fn a_mapping_is_larger_than_asked_for_by_an_eighth_at_most() {
        for size in [LARGE_BYTES_MIN, LARGE_BYTES_MIN + 1, 300_000, (1 << 20) - 1, 1 << 20, (5 << 30) + 3] {
            let bytes = mapping_bytes(size);
            assert!(
                bytes >= size && bytes - size <= size / CLASSES_PER_DOUBLING && bytes.is_multiple_of(PAGE_BYTES_MIN),
                "{size}"
            );
            assert_eq!(mapping_bytes(bytes), bytes);
        }
        let page = Layout::from_size_align(LARGE_BYTES_MIN, PAGE_BYTES_MIN).expect("a power of two");
        let two = Layout::from_size_align(LARGE_BYTES_MIN, 2 * PAGE_BYTES_MIN).expect("a power of two");
        let less = Layout::from_size_align(LARGE_BYTES_MIN - 1, 1).expect("a power of two");
        assert_eq!([page, two, less].map(is_large), [true, false, false]);
    }
}
