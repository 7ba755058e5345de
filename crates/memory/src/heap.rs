//! What happens when an allocation that cannot return an error fails?
//!
//! Rust ends the process when an allocation fails. A library that allocates too much cannot be stopped by a panic, because an allocator must
//! not unwind. But an allocator does not have to return. Work whose allocations a client's request determines runs on an [`expendable`] thread.
//! If such a thread exceeds its bound, a callback is told, and the thread sleeps for ever. The memory that it holds is lost, and nothing else.
//! A thread that is not expendable waits for a while before it ends the process, because other threads may release memory meanwhile. All this
//! needs [`Heap`] as the program's allocator.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::time::Duration;

#[cfg(all(target_env = "gnu", not(miri)))]
use crate::allowed::address_space_limit;
use crate::block::reclaim_bytes;
use crate::headroom::wait_for_probes;
use crate::large;
use crate::page::PAGE_BYTES_MAX;

/// Smaller allocations do not count against a thread's bound: there are many of them, and they share pages with those of other threads.
pub const COUNTED_BYTES_MIN: usize = 1 << 20;

/// How often a failed allocation is tried again, and the pause before each try.
const TRIES: u32 = 500;
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(4);
/// Larger allocations are not tried again: that much memory is not released in so short a time.
const WAITED_FOR_BYTES_MAX: usize = 1 << 30;

/// The system's allocator, with mappings for large allocations. It stops an expendable thread that exceeds its bound.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

/// An allocation that an expendable thread could not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes of that allocation.
    pub requested: usize,
    /// Bytes that the thread had, in allocations of [`COUNTED_BYTES_MIN`] and more.
    pub had: usize,
    /// Bytes that the thread may have together.
    pub bytes_max: usize,
}

/// The bound of the work that runs on a thread. It lies in the stack frame of [`expendable`].
struct Bound<'a> {
    bytes_max: usize,
    had: Cell<usize>,
    lost: &'a dyn Fn(Shortage),
}

thread_local! {
    /// Null on a thread that is not expendable. It has no destructor, so that the allocator can read it at any time.
    static BOUND: Cell<*const Bound<'static>> = const { Cell::new(ptr::null()) };
}

/// Runs `work`, which may have `bytes_max` bytes at one time. If it allocates more, or if the system has no more, `lost` is called and the
/// thread sleeps for ever. So the caller must be a thread that no other thread waits for.
pub fn expendable<R>(bytes_max: usize, lost: &dyn Fn(Shortage), work: impl FnOnce() -> R) -> R {
    /// Also when `work` panics.
    struct Unbound;
    impl Drop for Unbound {
        fn drop(&mut self) {
            BOUND.set(ptr::null());
        }
    }
    let bound = Bound { bytes_max, had: Cell::new(0), lost };
    let _unbound = Unbound;
    BOUND.set((&raw const bound).cast());
    work()
}

/// Configures the system's allocator. Must be called when the process begins.
///
/// That allocator returns memory at the end of a heap only inside `free`, and by default keeps up to 64 MiB there. This sets the limit to
/// [`HEAP_END_BYTES`]. [`crate::trim_heap`] returns free memory before the end.
///
/// If untouched memory counts, because the address space has a limit or the system does not overcommit, large allocations that were freed are
/// not kept, and threads share a few heaps.
pub fn fit_heap() {
    #[cfg(all(target_env = "gnu", not(miri)))]
    {
        let numbers = if counts_untouched() {
            [(libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN), (libc::M_ARENA_MAX, ARENAS_MAX)]
        } else {
            large::keep(KEPT_BYTES_MAX);
            // For libraries in other languages. Large allocations through `Heap` have their own mappings anyway.
            [(libc::M_MMAP_THRESHOLD, LIBRARY_MAPPED_BYTES_MIN), (libc::M_TRIM_THRESHOLD, HEAP_END_BYTES)]
        };
        for (what, value) in numbers {
            // SAFETY: sets a number of the allocator's; no pointers are involved.
            unsafe { libc::mallopt(what, value) };
        }
    }
}

/// If untouched memory counts: allocations of this size and more get their own mapping, which is unmapped when they are freed.
const MAPPED_BYTES_MIN: libc::c_int = 128 << 10;
/// If untouched memory counts: the number of heaps that threads share.
const ARENAS_MAX: libc::c_int = 2;
/// If it does not count: allocations of this size and more get their own mapping. The allocator accepts no larger value.
const LIBRARY_MAPPED_BYTES_MIN: libc::c_int = 32 << 20;
/// Free bytes that the allocator keeps at the end of each heap. Work that frees and allocates more than this in small pieces touches fresh pages
/// each time.
const HEAP_END_BYTES: libc::c_int = 2 << 20;
/// Bytes of freed large allocations that are kept for reuse.
const KEPT_BYTES_MAX: usize = 256 << 20;

#[cfg(all(target_env = "gnu", not(miri)))]
fn counts_untouched() -> bool {
    let never_more = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|text| text.trim() == "2");
    never_more || address_space_limit().is_some()
}

// SAFETY: every call goes to `large` as it came; beside that only counting, and not returning, happens here.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        charge(layout.size());
        // SAFETY: as our caller promised for us.
        allocate(layout.size(), || unsafe { large::alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        charge(layout.size());
        // SAFETY: as our caller promised for us.
        allocate(layout.size(), || unsafe { large::alloc_zeroed(layout) })
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        credit(layout.size());
        // SAFETY: as our caller promised for us; what we gave it came from `large`.
        unsafe { large::dealloc(ptr, layout) };
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        charge(size);
        // SAFETY: as our caller promised for us; what we gave it came from `large`, where it still is if a call before this one
        // answered null.
        let moved = allocate(size, || unsafe { large::realloc(ptr, layout, size) });
        credit(layout.size());
        moved
    }
}

/// Counts an allocation before it is made. Does not return if the thread exceeds its bound.
#[inline]
fn charge(bytes: usize) {
    if bytes >= COUNTED_BYTES_MIN {
        with_bound(|bound| {
            let had = bound.had.get();
            if had.saturating_add(bytes) > bound.bytes_max {
                lose(bound, bytes);
            }
            bound.had.set(had + bytes);
        });
    }
}

/// Counts freed bytes. The memory may have been allocated by another thread, so the sum saturates at 0.
#[inline]
fn credit(bytes: usize) {
    if bytes >= COUNTED_BYTES_MIN {
        with_bound(|bound| bound.had.set(bound.had.get().saturating_sub(bytes)));
    }
}

/// Allocates by `attempt`. Does not return if that fails on an expendable thread.
#[inline]
fn allocate(requested: usize, attempt: impl Fn() -> *mut u8) -> *mut u8 {
    let ptr = attempt();
    if ptr.is_null() { allocate_again(requested, &attempt) } else { ptr }
}

/// Tries again after kept memory was returned to the system, while other threads may release memory.
#[cold]
#[expect(clippy::disallowed_methods, reason = "an allocator has nothing to wait for but time")]
fn allocate_again(requested: usize, attempt: &dyn Fn() -> *mut u8) -> *mut u8 {
    for _ in 0..TRIES {
        wait_for_probes();
        // The mapping is larger than the allocation by at most an eighth.
        reclaim_bytes(requested.saturating_add(requested / 8).saturating_add(PAGE_BYTES_MAX));
        let ptr = attempt();
        if !ptr.is_null() {
            return ptr;
        }
        with_bound(|bound| lose(bound, requested));
        if requested > WAITED_FOR_BYTES_MAX {
            break;
        }
        std::thread::sleep(TRY_AGAIN_AFTER);
    }
    ptr::null_mut()
}

#[inline]
fn with_bound(act: impl FnOnce(&Bound<'_>)) {
    let bound = BOUND.get();
    // A panicking thread holds locks while it prints its message, so it must not be stopped.
    if !bound.is_null() && !std::thread::panicking() {
        // SAFETY: not null means that `expendable` set it on this very thread and has not returned yet, so its frame, in which
        // the bound lies, is there.
        act(unsafe { &*bound });
    }
}

#[cold]
fn lose(bound: &Bound<'_>, requested: usize) -> ! {
    let shortage = Shortage { requested, had: bound.had.get(), bytes_max: bound.bytes_max };
    // The callback may allocate, so the bound no longer applies.
    BOUND.set(ptr::null());
    // An allocator must not unwind, even if the callback panics.
    let _ = catch_unwind(AssertUnwindSafe(|| (bound.lost)(shortage)));
    loop {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;
    use std::sync::mpsc;
    use std::time::Duration;

    #[global_allocator]
    static HEAP: Heap = Heap;

    const MIB: usize = 1 << 20;

    /// The outcome of `work` on an expendable thread with 10 MiB.
    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "a test may panic")]
    fn check(work: impl FnOnce() -> usize + Send + 'static, comes: Result<usize, Shortage>) {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let lost = |shortage| sender.send(Err(shortage)).expect("somebody listens");
            let done = expendable(10 * MIB, &lost, work);
            sender.send(Ok(done)).expect("somebody listens");
        });
        assert_eq!(receiver.recv_timeout(Duration::from_mins(1)), Ok(comes));
    }

    fn block(mib: usize) -> Vec<u8> {
        black_box(Vec::with_capacity(mib * MIB))
    }

    #[test]
    fn work_within_its_bound_is_done() {
        check(|| block(9).capacity(), Ok(9 * MIB));
        check(|| (0..100).map(|_| block(9).capacity() / MIB).sum(), Ok(900));
        check(|| (0..100_000).map(|at| black_box(vec![0u8; at % 300]).len()).filter(|len| *len == 7).count(), Ok(334));
    }

    #[test]
    fn work_beyond_its_bound_is_lost_and_somebody_knows_the_numbers() {
        check(|| block(11).capacity(), Err(Shortage { requested: 11 * MIB, had: 0, bytes_max: 10 * MIB }));
        check(
            || [block(6), block(3), block(5)].len(),
            Err(Shortage { requested: 5 * MIB, had: 9 * MIB, bytes_max: 10 * MIB }),
        );
        let grows = || {
            let mut grows = black_box(vec![0u8; 4 * MIB]);
            (0..3).for_each(|_| grows.resize(grows.len() * 2, 1));
            grows.len()
        };
        check(grows, Err(Shortage { requested: 8 * MIB, had: 4 * MIB, bytes_max: 10 * MIB }));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test may panic")]
    fn what_the_system_does_not_have_is_a_shortage_too() {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let lost = |shortage: Shortage| sender.send(shortage.requested).expect("somebody listens");
            expendable(usize::MAX, &lost, || block(1 << 30).capacity())
        });
        assert_eq!(receiver.recv_timeout(Duration::from_mins(1)), Ok(1 << 50));
    }

    #[test]
    fn what_is_not_there_yet_is_waited_for_and_what_cannot_be_is_not() {
        let tries = Cell::new(0);
        let mut found = 7u8;
        let found: *mut u8 = &raw mut found;
        let attempt = || {
            tries.set(tries.get() + 1);
            if tries.get() < 4 { ptr::null_mut() } else { found }
        };
        assert_eq!(allocate(100, attempt), found);
        assert_eq!(tries.replace(0), 4);
        assert!(allocate(WAITED_FOR_BYTES_MAX + 1, attempt).is_null());
        assert_eq!(tries.get(), 2);
    }

    #[test]
    fn a_panic_ends_the_bound_and_other_threads_have_none() {
        let panics = || expendable(MIB, &|_| {}, || panic!("as planned"));
        assert!(catch_unwind(panics).is_err());
        assert_eq!(block(20).capacity(), 20 * MIB);
    }
}
