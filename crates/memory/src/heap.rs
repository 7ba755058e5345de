//! What happens when an allocation that cannot return an error fails?
//!
//! Rust ends the process when an allocation fails. A library that allocates too much cannot be stopped by a panic, because an allocator must not unwind. But an
//! allocator does not have to return. Work whose allocations a client's request determines runs by [`run_bounded`] on a thread of its own, a bounded thread. If
//! it exceeds its bound, or the bound of all runs together ([`crate::run_memory`]), a callback is called, and the thread sleeps forever. Its large allocations
//! may go back to the system. Everything else that it holds is lost.
//!
//! A thread that is not bounded waits for a while before it ends the process, because other threads may release memory meanwhile. All this needs [`Heap`] as
//! the program's allocator.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::time::Duration;

#[cfg(all(target_env = "gnu", not(miri)))]
use crate::allowed::address_space_limit;
use crate::block::reclaim_bytes;
use crate::headroom::{NoMemory, bytes_max, wait_for_probes};
use crate::large;
use crate::owned_pages;
use crate::page::PAGE_BYTES_MAX;
use crate::run_memory::{Account, Reported, nearly_full, reserve_for_run, runs_bytes_max};

/// How often a run tries again if other runs have the memory that it needs. The number is small, because a thread that serves connections may wait for the
/// run.
const TRIES_OF_RUNS: u32 = 15;
/// How often a failed allocation is tried again, and the pause before each try.
const TRIES: u32 = 500;
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(4);
/// Larger allocations are not tried again, because so much memory is not released in so short a time.
const WAITED_FOR_BYTES_MAX: usize = 1 << 30;

/// The system's allocator, with mappings for large allocations. It stops a bounded thread that exceeds its bound.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

/// The bound of the work that runs on a thread. It lies in the stack frame of [`run_bounded`].
struct Bound<'a> {
    bytes_max: usize,
    had: Account,
    reported: Reported,
    lost: &'a dyn Fn(NoMemory) -> bool,
}

thread_local! {
    /// Null on a thread that is not bounded. It has no destructor, so that the allocator can read it at any time.
    static BOUND: Cell<*const Bound<'static>> = const { Cell::new(ptr::null()) };
}

/// Runs `work`, which may have `bytes_max` bytes at one time. If it allocates more, or if the system or all runs together have no more, `lost` is called and
/// the thread sleeps forever. So the caller must be a thread that no other thread waits for.
///
/// If `lost` returns true, the large allocations of `work` become zero, because their pages go back to the system.
///
/// # Safety
/// If `lost` returns true, no other thread uses a large allocation that `work` made from then on, except to free it.
pub unsafe fn run_bounded<R>(bytes_max: usize, lost: &dyn Fn(NoMemory) -> bool, work: impl FnOnce() -> R) -> R {
    /// Removes the bound when it is dropped, also if `work` panics.
    struct Unbound<'a>(&'a Bound<'a>);
    impl Drop for Unbound<'_> {
        fn drop(&mut self) {
            BOUND.set(ptr::null());
            owned_pages::remove_all(self.0.owner());
            self.0.had.trim();
        }
    }
    // The first call reads a file, which allocates. The allocator must not allocate.
    self::bytes_max();
    let bound = Bound { bytes_max, had: Account::default(), reported: Reported::default(), lost };
    let _unbound = Unbound(&bound);
    BOUND.set((&raw const bound).cast());
    work()
}

/// Returns an error if this bounded thread has nearly as much memory as it may have, or would exceed its bound with `more` bytes. Work that can stop early
/// should stop then, because a thread whose work ends is not lost.
pub fn check_memory(more: usize) -> Result<(), NoMemory> {
    let mut full = None;
    with_bound(|bound| full = nearly_full(bound.had.bytes(), bound.bytes_max, more));
    full.map_or(Ok(()), |(taken, max)| Err(NoMemory { requested: more.max(max.saturating_sub(taken)), full }))
}

/// Configures the system's allocator. Must be called when the process begins.
///
/// That allocator returns memory at the end of a heap only inside `free`, and by default keeps up to 64 MiB there. This function sets the limit to
/// [`HEAP_END_BYTES`]. [`crate::trim_heap`] also returns free memory that does not lie at the end.
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
/// If untouched memory does not count: allocations of this size and more get their own mapping. The allocator accepts no larger value.
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

// SAFETY: every call is passed to `large` unchanged. Apart from that, this code only counts, and on a lost thread does not return.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: our caller keeps the same contract.
        counted(layout, || unsafe { large::alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: our caller keeps the same contract.
        counted(layout, || unsafe { large::alloc_zeroed(layout) })
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        before_free(ptr, layout);
        // SAFETY: our caller keeps the same contract, and all memory of this allocator came from `large`.
        unsafe { large::dealloc(ptr, layout) };
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        with_bound(|bound| bound.charge(size));
        before_free(ptr, layout);
        // SAFETY: our caller keeps the same contract, and all memory of this allocator came from `large`. After an attempt that returned null, the old
        // allocation is still valid.
        let moved = allocate(size, || unsafe { large::realloc(ptr, layout, size) });
        // SAFETY: our caller promises that `size`, rounded up to the alignment, does not overflow, and the alignment is a layout's.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        with_bound(|bound| bound.register(moved, new));
        moved
    }
}

/// Allocates by `attempt`, and counts it.
#[inline]
fn counted(layout: Layout, attempt: impl Fn() -> *mut u8) -> *mut u8 {
    with_bound(|bound| bound.charge(layout.size()));
    let ptr = allocate(layout.size(), attempt);
    with_bound(|bound| bound.register(ptr, layout));
    ptr
}

/// Call this before an allocation is freed.
#[inline]
fn before_free(ptr: *mut u8, layout: Layout) {
    if large::is_large(layout) {
        owned_pages::remove(ptr);
    }
    with_bound(|bound| bound.credit(layout.size()));
}

impl Bound<'_> {
    /// Counts an allocation before it is made. Does not return if the allocation would exceed the bound.
    fn charge(&self, bytes: usize) {
        let had = self.had.bytes().saturating_add(bytes);
        if had > self.bytes_max {
            lose(self, NoMemory { requested: bytes, full: Some((self.had.bytes(), self.bytes_max)) });
        }
        let reserve = |more| reserve_for_run(more, had).or_else(|refused| reserve_later(more, had, refused));
        if let Err(refused) = self.reported.grow(had, reserve) {
            lose(self, NoMemory { requested: bytes, ..refused });
        }
        self.had.add(bytes);
    }

    /// Registers an allocation that was made, if it is large.
    fn register(&self, ptr: *mut u8, layout: Layout) {
        if !ptr.is_null() && large::is_large(layout) {
            owned_pages::add(ptr, large::mapping_bytes(layout.size()), self.owner());
        }
    }

    /// Counts an allocation that is freed.
    fn credit(&self, bytes: usize) {
        self.had.remove(bytes);
        self.reported.shrink(self.had.bytes());
    }

    /// Returns the pages of the large allocations to the system. The remaining bytes still count.
    fn return_pages(&self) {
        // SAFETY: this thread's work never continues, and `lost` returned true: no other thread uses the allocations.
        let returned = unsafe { owned_pages::return_pages(self.owner()) };
        let left = self.had.bytes().saturating_sub(returned);
        self.reported.set(left);
    }

    /// Identifies this thread among the owners of pages.
    fn owner(&self) -> usize {
        ptr::from_ref(self).addr()
    }
}

/// Allocates by `attempt`. Does not return if that fails on a bounded thread.
#[inline]
fn allocate(requested: usize, attempt: impl Fn() -> *mut u8) -> *mut u8 {
    let ptr = attempt();
    if ptr.is_null() { allocate_again(requested, &attempt) } else { ptr }
}

/// Returns kept memory to the system and tries again, several times, because other threads may release memory meanwhile.
#[cold]
#[expect(clippy::disallowed_methods, reason = "no event tells an allocator that memory was released")]
fn allocate_again(requested: usize, attempt: &dyn Fn() -> *mut u8) -> *mut u8 {
    for _ in 0..TRIES {
        wait_for_probes();
        // The mapping is larger than the allocation by at most an eighth.
        reclaim_bytes(requested.saturating_add(requested / 8).saturating_add(PAGE_BYTES_MAX));
        let ptr = attempt();
        if !ptr.is_null() {
            return ptr;
        }
        with_bound(|bound| lose(bound, NoMemory::refused(requested)));
        if requested > WAITED_FOR_BYTES_MAX {
            break;
        }
        std::thread::sleep(TRY_AGAIN_AFTER);
    }
    ptr::null_mut()
}

/// Waits for other runs to release memory, and counts `bytes` more bytes for a run, which then has `own` bytes. `refused` is the error of the first attempt.
#[cold]
#[expect(clippy::disallowed_methods, reason = "no event tells an allocator that memory was released")]
fn reserve_later(bytes: usize, own: usize, mut refused: NoMemory) -> Result<(), NoMemory> {
    // Waiting cannot help if the allocation is larger than all runs may have together.
    if bytes > runs_bytes_max() {
        return Err(refused);
    }
    for _ in 0..TRIES_OF_RUNS {
        std::thread::sleep(TRY_AGAIN_AFTER);
        match reserve_for_run(bytes, own) {
            Ok(()) => return Ok(()),
            Err(again) => refused = again,
        }
    }
    Err(refused)
}

#[inline]
fn with_bound(act: impl FnOnce(&Bound<'_>)) {
    let bound = BOUND.get();
    // A panicking thread holds locks while it prints its message, so it must not be stopped.
    if !bound.is_null() && !std::thread::panicking() {
        // SAFETY: it is not null, so `run_bounded` set it on this thread and has not returned yet. So the bound, which lies in the stack frame of
        // `run_bounded`, still exists.
        act(unsafe { &*bound });
    }
}

#[cold]
fn lose(bound: &Bound<'_>, refused: NoMemory) -> ! {
    // The callback may allocate, so the bound no longer applies.
    BOUND.set(ptr::null());
    // An allocator must not unwind, even if the callback panics.
    if catch_unwind(AssertUnwindSafe(|| (bound.lost)(refused))).unwrap_or(false) {
        bound.return_pages();
    }
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

    /// The outcome of `work` on a bounded thread with 10 MiB.
    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "a test may panic")]
    fn check(work: impl FnOnce() -> usize + Send + 'static, comes: Result<usize, NoMemory>) {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let lost = |refused| sender.send(Err(refused)).is_ok();
            // SAFETY: the work shares nothing with other threads.
            let done = unsafe { run_bounded(10 * MIB, &lost, work) };
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
        check(|| block(11).capacity(), Err(NoMemory { requested: 11 * MIB, full: Some((0, 10 * MIB)) }));
        check(
            || [block(6), block(3), block(5)].len(),
            Err(NoMemory { requested: 5 * MIB, full: Some((9 * MIB, 10 * MIB)) }),
        );
        let grows = || {
            let mut grows = black_box(vec![0u8; 4 * MIB]);
            (0..3).for_each(|_| grows.resize(grows.len() * 2, 1));
            grows.len()
        };
        check(grows, Err(NoMemory { requested: 8 * MIB, full: Some((4 * MIB, 10 * MIB)) }));
    }

    #[test]
    fn work_that_looks_ends_before_it_is_lost() {
        check(
            || {
                let mut all = Vec::new();
                while check_memory(0).is_ok() {
                    all.push(black_box(vec![1u8; 1000]));
                }
                all.len() * 1000 / MIB
            },
            Ok(7),
        );
        check(|| usize::from(check_memory(11 * MIB).is_ok()), Ok(0));
        assert_eq!(check_memory(usize::MAX), Ok(()));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test may panic")]
    fn what_the_system_does_not_have_is_a_shortage_too() {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let lost = |refused: NoMemory| sender.send(refused.requested).is_ok();
            // SAFETY: the work shares nothing with other threads.
            unsafe { run_bounded(usize::MAX, &lost, || block(1 << 30).capacity()) }
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
        // SAFETY: the work shares nothing with other threads.
        let panics = || unsafe { run_bounded(MIB, &|_| false, || panic!("as planned")) };
        assert!(catch_unwind(panics).is_err());
        assert_eq!(block(20).capacity(), 20 * MIB);
    }
}
