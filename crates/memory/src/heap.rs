//! Who pays when memory is short?
//!
//! Rust ends the process when an allocation fails, and a library that asks for too much cannot be stopped: an allocator must not
//! unwind. But it need not return. Work that asks for memory as a client's request drives it is done on an [`expendable`] thread:
//! where that asks for more than it may have, somebody else is told, and the thread sleeps for ever. What it held stays held,
//! which costs memory; nothing else is lost. And a thread that is not expendable waits a while before it ends the process: others
//! are about to be refused what they ask for, and give back what they have. This needs [`Heap`] as the program's allocator;
//! without it all is as always.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::time::Duration;

#[cfg(all(target_env = "gnu", not(miri)))]
use crate::allowed::address_space_limit;
use crate::asking::wait_for_probes;
use crate::block::empty_pool;
use crate::large;

/// Allocations below this do not count against a thread's bound: they are many, and others' memory lies between them.
pub const COUNTED_BYTES_MIN: usize = 1 << 20;

/// How often an allocation is tried again that the system refused, and how long after the time before.
const TRIES: u32 = 500;
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(4);
/// Larger allocations are not waited for: nobody gives back as much in a moment.
const WAITED_FOR_BYTES_MAX: usize = 1 << 30;

/// The system's allocator with mappings for what is large, which lets an expendable thread sleep rather than give it too much.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

/// What a thread wanted and could not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes it asked for at last.
    pub asked: usize,
    /// Bytes it had, in allocations large enough to be counted.
    pub had: usize,
    /// Bytes it might have had together.
    pub bytes_max: usize,
}

/// The bound of the work that runs on a thread. It lies in the frame of [`expendable`].
struct Bound<'a> {
    bytes_max: usize,
    had: Cell<usize>,
    lost: &'a dyn Fn(Shortage),
}

thread_local! {
    /// Null where a thread is not expendable. Without a destructor, so that it can be read whenever the allocator is called.
    static BOUND: Cell<*const Bound<'static>> = const { Cell::new(ptr::null()) };
}

/// Does `work`, which may have `bytes_max` bytes at one time. If it asks for more, or the system has no more, `lost` is told and the
/// thread never goes on: the caller must be one that nobody waits for.
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

/// To be called when the process begins.
///
/// The system's allocator gives back the end of a heap only inside `free`, and by default lets up to 64 MiB lie there. Here it lets
/// [`HEAP_END_BYTES`] lie there. [`crate::trim_heap`] gives back what is free before the end.
///
/// Where memory counts that nobody touches, because the address space has a limit or the system never promises more than it has,
/// nothing that is large is kept, and few threads have heaps of their own.
pub fn fit_heap() {
    #[cfg(all(target_env = "gnu", not(miri)))]
    {
        let numbers = if counts_untouched() {
            [(libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN), (libc::M_ARENA_MAX, ARENAS_MAX)]
        } else {
            large::keep(KEPT_BYTES_MAX);
            // For libraries that are not Rust's: whatever comes through `Heap` and is large has a mapping of its own anyway.
            [(libc::M_MMAP_THRESHOLD, LIBRARY_MAPPED_BYTES_MIN), (libc::M_TRIM_THRESHOLD, HEAP_END_BYTES)]
        };
        for (what, value) in numbers {
            // SAFETY: sets a number of the allocator's; no pointers are involved.
            unsafe { libc::mallopt(what, value) };
        }
    }
}

/// Where untouched memory counts: the allocator maps allocations of this size and more by themselves, and unmaps them when they are freed.
const MAPPED_BYTES_MIN: libc::c_int = 128 << 10;
/// Where untouched memory counts: heaps that the threads share.
const ARENAS_MAX: libc::c_int = 2;
/// Where it does not count: the allocator maps allocations of this size and more by themselves. It takes no larger value.
const LIBRARY_MAPPED_BYTES_MIN: libc::c_int = 32 << 20;
/// Free bytes at the end of each heap that the system's allocator keeps. Work with more in small pieces touches fresh pages each time.
const HEAP_END_BYTES: libc::c_int = 2 << 20;
/// Bytes of large allocations that are kept for the next.
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
        given(layout.size(), || unsafe { large::alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        charge(layout.size());
        // SAFETY: as our caller promised for us.
        given(layout.size(), || unsafe { large::alloc_zeroed(layout) })
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
        let moved = given(size, || unsafe { large::realloc(ptr, layout, size) });
        credit(layout.size());
        moved
    }
}

/// Counts an allocation that is about to be made. Does not return if that is more than the thread may have.
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

/// Counts what was freed. Memory may come from a thread that was not bound, so there can be less than nothing.
#[inline]
fn credit(bytes: usize) {
    if bytes >= COUNTED_BYTES_MIN {
        with_bound(|bound| bound.had.set(bound.had.get().saturating_sub(bytes)));
    }
}

/// Passes on what the system gives. Does not return if that is nothing and the thread is expendable.
#[inline]
fn given(asked: usize, ask: impl Fn() -> *mut u8) -> *mut u8 {
    let ptr = ask();
    if ptr.is_null() { given_later(asked, &ask) } else { ptr }
}

/// What the system gives once the pool is empty, and others have given back what they had.
#[cold]
#[expect(clippy::disallowed_methods, reason = "an allocator can wait for nothing but time")]
fn given_later(asked: usize, ask: &dyn Fn() -> *mut u8) -> *mut u8 {
    for _ in 0..TRIES {
        wait_for_probes();
        empty_pool();
        let ptr = ask();
        if !ptr.is_null() {
            return ptr;
        }
        with_bound(|bound| lose(bound, asked));
        if asked > WAITED_FOR_BYTES_MAX {
            break;
        }
        std::thread::sleep(TRY_AGAIN_AFTER);
    }
    ptr::null_mut()
}

#[inline]
fn with_bound(act: impl FnOnce(&Bound<'_>)) {
    let bound = BOUND.get();
    // A panic holds locks while it tells of itself, and ends soon.
    if !bound.is_null() && !std::thread::panicking() {
        // SAFETY: not null means that `expendable` set it on this very thread and has not returned yet, so its frame, in which
        // the bound lies, is there.
        act(unsafe { &*bound });
    }
}

#[cold]
fn lose(bound: &Bound<'_>, asked: usize) -> ! {
    let shortage = Shortage { asked, had: bound.had.get(), bytes_max: bound.bytes_max };
    // From here on the thread is like any other: telling takes memory as well.
    BOUND.set(ptr::null());
    // An allocator must not unwind, whatever happens to whom it tells.
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

    /// What comes of `work` on an expendable thread with 10 MiB.
    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "a test may panic")]
    fn check(work: impl FnOnce() -> usize + Send + 'static, comes: Result<usize, Shortage>) {
        let (tell, hear) = mpsc::channel();
        std::thread::spawn(move || {
            let lost = |shortage| tell.send(Err(shortage)).expect("somebody listens");
            let done = expendable(10 * MIB, &lost, work);
            tell.send(Ok(done)).expect("somebody listens");
        });
        assert_eq!(hear.recv_timeout(Duration::from_mins(1)), Ok(comes));
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
        check(|| block(11).capacity(), Err(Shortage { asked: 11 * MIB, had: 0, bytes_max: 10 * MIB }));
        check(
            || [block(6), block(3), block(5)].len(),
            Err(Shortage { asked: 5 * MIB, had: 9 * MIB, bytes_max: 10 * MIB }),
        );
        let grows = || {
            let mut grows = black_box(vec![0u8; 4 * MIB]);
            (0..3).for_each(|_| grows.resize(grows.len() * 2, 1));
            grows.len()
        };
        check(grows, Err(Shortage { asked: 8 * MIB, had: 4 * MIB, bytes_max: 10 * MIB }));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test may panic")]
    fn what_the_system_does_not_have_is_a_shortage_too() {
        let (tell, hear) = mpsc::channel();
        std::thread::spawn(move || {
            let lost = |shortage: Shortage| tell.send(shortage.asked).expect("somebody listens");
            expendable(usize::MAX, &lost, || block(1 << 30).capacity())
        });
        assert_eq!(hear.recv_timeout(Duration::from_mins(1)), Ok(1 << 50));
    }

    #[test]
    fn what_is_not_there_yet_is_waited_for_and_what_cannot_be_is_not() {
        let tries = Cell::new(0);
        let mut found = 7u8;
        let found: *mut u8 = &raw mut found;
        let ask = || {
            tries.set(tries.get() + 1);
            if tries.get() < 4 { ptr::null_mut() } else { found }
        };
        assert_eq!(given(100, ask), found);
        assert_eq!(tries.replace(0), 4);
        assert!(given(WAITED_FOR_BYTES_MAX + 1, ask).is_null());
        assert_eq!(tries.get(), 2);
    }

    #[test]
    fn a_panic_ends_the_bound_and_other_threads_have_none() {
        let panics = || expendable(MIB, &|_| {}, || panic!("as planned"));
        assert!(catch_unwind(panics).is_err());
        assert_eq!(block(20).capacity(), 20 * MIB);
    }
}
