//! How much memory do the runs of models get?
//!
//! ```text
//!   an engine's allocation ─┬─ while it loads a model ──► counted as weights, not refused
//!                           └─ while a model runs ──────► refused if this run, or all together, would have too much
//! ```
//! A graph may need any amount of memory for a request of some kilobytes: an outer product of two long vectors is enough. The system promises more memory than
//! it has, and kills the process when too much of it is used. So an engine gets its memory from this module. One run may have half of the process's memory. All
//! runs and the blocks of requests together may have three quarters of the memory that the weights leave ([`crate::headroom`]). A run that needs little may
//! also use the rest, so that it is not refused while other runs have much.
//!
//! An engine that is written in Rust allocates by [`crate::Heap`], which counts what a bounded thread has. A library in another language calls
//! [`allocate_for_run`], or counts what it allocates in its own way by [`charge_run`].

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use crate::allowed::allowed_bytes;
use crate::block::{Block, POOLED_BYTES_MIN, or_reclaim, reclaimable_bytes, trim_heap};
use crate::headroom::{Headroom, MAPPED, NoMemory, Purpose, WEIGHTS, bytes_max, mapped};

/// A run may have one part in this many of the process's memory.
const RUN_SHARE: u64 = 2;
/// Bytes before an allocation, for its [`Header`]. They keep the allocation aligned as blocks are.
const HEADER_BYTES: usize = 64;
/// Bytes behind an allocation that an engine may read: ONNX Runtime's kernels for quantised matrices read up to 30.
const READ_BEHIND_BYTES: usize = 64;
/// A thread may work for the run of another thread. Its allocations are refused only if they have this size or more.
const OTHERS_BYTES_MIN: usize = 16 << 20;
/// Bytes that a library keeps in the system's heap for a small allocation, such as the shape and owner of the tensor.
const OVERHEAD_BYTES: usize = 512;
/// A thread adds its allocations to those of all runs each time they have changed by this many bytes.
const STEP_BYTES: usize = 1 << 20;
/// After a run whose small allocations had at least one part in this many of the process's memory, the free memory of the system's heap is returned.
const TRIMMED_SHARE: usize = 32;
/// A run that has at most this many bytes may also use the memory that is kept for requests. So other runs are no reason to refuse it memory.
const FEW_BYTES: usize = 16 << 20;
/// Small allocations of a run may exceed its bound by one part in this many of it.
const SMALL_SHARE: usize = 8;
/// A run that can stop early does so when less than one part in this many of its limit is left.
const LEFT_SHARE: usize = 4;

const _: () = assert!(size_of::<Header>() <= HEADER_BYTES && align_of::<Header>() <= HEADER_BYTES);

/// The data that is needed to free an allocation. It lies directly before the allocation's first byte.
struct Header {
    /// Bytes of the allocation, including the header.
    bytes: usize,
    is_weights: bool,
}

/// The work that this thread does for an engine.
#[derive(Clone, Copy)]
enum Activity {
    /// Nothing, or work for a run of another thread.
    Other,
    /// A load, with the bytes that it has.
    Load(NonNull<Cell<usize>>),
    Run(NonNull<Run>),
}

/// One run. It lies in the stack frame of [`run_with_memory`].
struct Run {
    bytes_max: usize,
    had: Account,
    /// The bytes that [`charge_run`] counted.
    charged: Charged,
    refused: Cell<Option<NoMemory>>,
}

/// The bytes that a run was charged.
#[derive(Debug, Default)]
struct Charged {
    bytes: Cell<usize>,
    /// The most that `bytes` was.
    bytes_max: Cell<usize>,
    reported: Reported,
}

/// The bytes of a run that are counted together with those of other runs. They follow the run's own bytes in steps of [`STEP_BYTES`]. When this is dropped,
/// they are no longer counted.
#[derive(Debug, Default)]
pub(crate) struct Reported(Cell<usize>);

impl Reported {
    /// Call this before the run's bytes grow to `now`. If they have grown by a step, `reserve` is called to count that many more bytes, or to refuse them.
    pub(crate) fn grow(&self, now: usize, reserve: impl FnOnce(usize) -> Result<(), NoMemory>) -> Result<(), NoMemory> {
        let more = now.saturating_sub(self.0.get());
        if more >= STEP_BYTES {
            reserve(more)?;
            self.0.set(now);
        }
        Ok(())
    }

    /// Call this when the run's bytes have shrunk to `now`.
    pub(crate) fn shrink(&self, now: usize) {
        if self.0.get().saturating_sub(now) >= STEP_BYTES {
            self.set(now);
        }
    }

    /// Counts exactly `now` bytes.
    pub(crate) fn set(&self, now: usize) {
        mapped(self.0.replace(now), now);
    }
}

impl Drop for Reported {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// The bytes that a run has in large and small allocations.
#[derive(Debug, Default)]
pub(crate) struct Account {
    large: Cell<usize>,
    small: Cell<usize>,
    /// The most that `small` was.
    small_max: Cell<usize>,
}

impl Account {
    /// Bytes of all allocations.
    pub(crate) fn bytes(&self) -> usize {
        self.large.get().saturating_add(self.small.get())
    }

    /// Counts an allocation.
    pub(crate) fn add(&self, bytes: usize) {
        if bytes >= POOLED_BYTES_MIN {
            self.large.set(self.large.get().saturating_add(bytes));
        } else {
            self.small.set(self.small.get().saturating_add(bytes));
            self.small_max.set(self.small_max.get().max(self.small.get()));
        }
    }

    /// Counts an allocation that is freed. Another run or thread may have made it, so the sums stop at 0.
    pub(crate) fn remove(&self, bytes: usize) {
        let part = if bytes >= POOLED_BYTES_MIN { &self.large } else { &self.small };
        part.set(part.get().saturating_sub(bytes));
    }

    /// Call this at the end of a run. Otherwise the memory of its many small allocations would stay in the heap of this thread.
    pub(crate) fn trim(&self) {
        if self.small_max.get() >= bytes_max() / TRIMMED_SHARE {
            trim_heap();
        }
    }
}

thread_local! {
    static ACTIVITY: Cell<Activity> = const { Cell::new(Activity::Other) };
}

/// Bytes that one run of a model may have.
pub fn run_bytes_max() -> usize {
    usize::try_from(allowed_bytes() / RUN_SHARE).unwrap_or(usize::MAX)
}

impl NoMemory {
    /// Whether the limit of one run was exceeded. Then the run would be refused again, whatever other runs do.
    pub fn is_of_one_run(&self) -> bool {
        self.full.is_some_and(|(_, bytes_max)| bytes_max == run_bytes_max())
    }
}

/// Calls `work`, which runs a model. Within it, [`allocate_for_run`] provides at most `bytes_max` bytes at one time. Also returns the last refusal of an
/// allocation, if there was one.
pub fn run_with_memory<R>(bytes_max: usize, work: impl FnOnce() -> R) -> (R, Option<NoMemory>) {
    let run = Run { bytes_max, had: Account::default(), charged: Charged::default(), refused: Cell::new(None) };
    let result = during(Activity::Run(NonNull::from(&run)), work);
    run.had.trim();
    (result, run.refused.get())
}

/// Calls `work`, which loads a model. Within it, memory from [`allocate_for_run`] counts as weights. Also returns how many bytes of that memory the model has
/// kept.
pub fn load_with_memory<R>(work: impl FnOnce() -> R) -> (R, usize) {
    let had = Cell::new(0);
    let result = during(Activity::Load(NonNull::from(&had)), work);
    (result, had.get())
}

fn during<R>(activity: Activity, work: impl FnOnce() -> R) -> R {
    /// Sets the former activity again when it is dropped, also if `work` panics.
    struct Restore(Activity);
    impl Drop for Restore {
        fn drop(&mut self) {
            ACTIVITY.set(self.0);
        }
    }
    let _restore = Restore(ACTIVITY.replace(activity));
    work()
}

/// Allocates `len` bytes for an engine in another language, aligned to 64 bytes and not initialised. [`free_of_run`] frees them, on any thread.
///
/// Small allocations are refused only if the run has far too much. An engine may make them inside a parallel operator, where it cannot handle
/// a refusal.
pub fn allocate_for_run(len: usize) -> Result<NonNull<u8>, NoMemory> {
    let bytes = len.saturating_add(HEADER_BYTES + READ_BEHIND_BYTES);
    match ACTIVITY.get() {
        Activity::Load(had) => {
            let (ptr, bytes) = allocate(bytes, For::Weights)?;
            // SAFETY: `load_with_memory` set it on this thread and has not returned yet. So the number, which lies in its stack frame, still exists.
            let had = unsafe { had.as_ref() };
            had.set(had.get().saturating_add(bytes));
            Ok(ptr)
        }
        Activity::Other if bytes < OTHERS_BYTES_MIN => Ok(allocate(bytes, For::Counted)?.0),
        Activity::Other => Ok(allocate(bytes, For::Run(Purpose::Run))?.0),
        // SAFETY: `run_with_memory` set it on this thread and has not returned yet. So the run, which lies in its stack frame, still exists.
        Activity::Run(run) => unsafe { run.as_ref() }.allocate(bytes),
    }
}

/// Frees an allocation.
///
/// # Safety
/// `ptr` came from [`allocate_for_run`], and nobody uses its memory any more.
pub unsafe fn free_of_run(ptr: NonNull<u8>) {
    // SAFETY: the header lies before every allocation.
    let start = unsafe { ptr.sub(HEADER_BYTES) };
    // SAFETY: `allocate` wrote a header there.
    let Header { bytes, is_weights } = unsafe { start.cast::<Header>().read() };
    if is_weights {
        WEIGHTS.fetch_sub(bytes, Ordering::Relaxed);
    }
    match ACTIVITY.get() {
        // SAFETY: as in `allocate_for_run`.
        Activity::Run(run) => unsafe { run.as_ref() }.had.remove(charged(bytes)),
        Activity::Load(had) if is_weights => {
            // SAFETY: as in `allocate_for_run`.
            let had = unsafe { had.as_ref() };
            // Another load may have made the allocation, so the number stops at 0.
            had.set(had.get().saturating_sub(bytes));
        }
        Activity::Load(_) | Activity::Other => {}
    }
    if bytes >= POOLED_BYTES_MIN {
        if is_weights {
            mapped(0, bytes);
        }
        // SAFETY: `allocate` made this block and forgot it, and our caller gives it up.
        drop(unsafe { Block::from_large(start, bytes) });
        return;
    }
    if !is_weights {
        mapped(charged(bytes), 0);
    }
    // SAFETY: `allocate` allocated it with this layout, and our caller gives it up.
    unsafe { System.dealloc(start.as_ptr(), small(bytes)) };
}

/// Counts an allocation that the system's heap made for a library on this thread, if the thread runs a model. `bytes` returns its size. On an error the caller
/// must free the allocation, because the run may not have it. Bytes that [`credit_run`] does not subtract count until the run ends.
pub fn charge_run(bytes: impl FnOnce() -> usize) -> Result<(), NoMemory> {
    let Activity::Run(run) = ACTIVITY.get() else { return Ok(()) };
    // SAFETY: as in `allocate_for_run`.
    unsafe { run.as_ref() }.charge(bytes())
}

/// The opposite of [`charge_run`]. The allocation may be one that another run or thread made.
pub fn credit_run(bytes: impl FnOnce() -> usize) {
    if let Activity::Run(run) = ACTIVITY.get() {
        // SAFETY: as in `allocate_for_run`.
        unsafe { run.as_ref() }.charged.remove(bytes());
    }
}

impl Run {
    fn allocate(&self, bytes: usize) -> Result<NonNull<u8>, NoMemory> {
        let will_have = self.bytes().saturating_add(charged(bytes));
        let allocated = self.check(bytes, will_have).and_then(|()| {
            let what = if bytes < POOLED_BYTES_MIN { For::Counted } else { For::Run(purpose(will_have)) };
            allocate(bytes, what)
        });
        let (ptr, bytes) = self.noted(allocated)?;
        self.had.add(charged(bytes));
        Ok(ptr)
    }

    fn charge(&self, bytes: usize) -> Result<(), NoMemory> {
        let will_have = self.bytes().saturating_add(bytes);
        self.noted(self.check(bytes, will_have).and_then(|()| self.charged.add(bytes, will_have)))
    }

    /// Bytes of all allocations.
    fn bytes(&self) -> usize {
        self.had.bytes().saturating_add(self.charged.bytes.get())
    }

    /// Whether the run may have `will_have` bytes after an allocation of `bytes` bytes.
    fn check(&self, bytes: usize, will_have: usize) -> Result<(), NoMemory> {
        let is_small = bytes < POOLED_BYTES_MIN;
        let bytes_max =
            if is_small { self.bytes_max.saturating_add(self.bytes_max / SMALL_SHARE) } else { self.bytes_max };
        if will_have > bytes_max {
            return Err(NoMemory { requested: bytes, full: Some((self.bytes(), self.bytes_max)) });
        }
        Ok(())
    }

    /// Remembers a refusal, so that [`run_with_memory`] can return it.
    fn noted<T>(&self, result: Result<T, NoMemory>) -> Result<T, NoMemory> {
        result.inspect_err(|refused| self.refused.set(Some(*refused)))
    }
}

impl Charged {
    /// Counts `bytes` more bytes of a run, which then has `will_have` bytes in all.
    fn add(&self, bytes: usize, will_have: usize) -> Result<(), NoMemory> {
        let now = self.bytes.get().saturating_add(bytes);
        let counted = self.reported.grow(now, |more| reserve_for_run(more, will_have));
        counted.map_err(|refused| NoMemory { requested: bytes, ..refused })?;
        self.bytes.set(now);
        self.bytes_max.set(self.bytes_max.get().max(now));
        Ok(())
    }

    fn remove(&self, bytes: usize) {
        let now = self.bytes.get().saturating_sub(bytes);
        self.bytes.set(now);
        self.reported.shrink(now);
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        if self.bytes_max.get() >= bytes_max() / TRIMMED_SHARE {
            trim_heap();
        }
    }
}

/// How many bytes are counted for an allocation of `bytes` bytes.
fn charged(bytes: usize) -> usize {
    if bytes >= POOLED_BYTES_MIN { bytes } else { bytes + OVERHEAD_BYTES }
}

/// Bytes that all runs may have together, if requests use no memory.
pub(crate) fn runs_bytes_max() -> usize {
    Purpose::Run.bytes_max()
}

/// Whether a run should end because its memory is nearly used up. The run has `had` of at most `bytes_max` bytes, and needs `more`. Returns the bytes in use
/// and their limit: those of the run, or those of all runs.
pub(crate) fn nearly_full(had: usize, bytes_max: usize, more: usize) -> Option<(usize, usize)> {
    let taken = MAPPED.load(Ordering::Relaxed).saturating_sub(reclaimable_bytes());
    is_nearly_full((had, bytes_max), (taken, runs_bytes_max()), more)
}

/// As [`nearly_full`], for given numbers. `own` and `all` are the bytes in use and the limit, of the run and of all runs. If all runs together are near their
/// limit, only runs that have much memory end.
fn is_nearly_full(own: (usize, usize), all: (usize, usize), more: usize) -> Option<(usize, usize)> {
    let is_nearly = |(taken, bytes_max): (usize, usize)| {
        taken > bytes_max - bytes_max / LEFT_SHARE || taken.saturating_add(more) > bytes_max
    };
    let has_much = own.0.saturating_add(more) > FEW_BYTES;
    is_nearly(own).then_some(own).or_else(|| (has_much && is_nearly(all)).then_some(all))
}

/// The purpose of an allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    Weights,
    /// A run, but the bytes are only counted and never refused.
    Counted,
    Run(Purpose),
}

/// Makes an allocation of at least `bytes` bytes, including its header. Returns the address behind the header, and the number of bytes.
fn allocate(bytes: usize, what: For) -> Result<(NonNull<u8>, usize), NoMemory> {
    let is_weights = what == For::Weights;
    let (start, bytes) = if bytes >= POOLED_BYTES_MIN {
        let block = match what {
            // A block of the pool may be larger than needed, and weights would keep all of it for long.
            For::Weights => Block::fresh(bytes, None)?,
            For::Counted => Block::large(bytes, None)?,
            For::Run(purpose) => Block::large(bytes, Some(purpose))?,
        };
        let block = ManuallyDrop::new(block);
        if is_weights {
            mapped(block.capacity(), 0);
        }
        (block.as_ptr(), block.capacity())
    } else {
        // SAFETY: the layout's size is not zero, because it includes a header.
        let start = NonNull::new(unsafe { System.alloc(small(bytes)) });
        let start = start.ok_or(NoMemory::refused(bytes))?;
        if !is_weights {
            mapped(0, charged(bytes));
        }
        (start, bytes)
    };
    if is_weights {
        WEIGHTS.fetch_add(bytes, Ordering::Relaxed);
    }
    // SAFETY: the first `HEADER_BYTES` bytes of the allocation are for the header, and the allocation is aligned to `HEADER_BYTES`.
    unsafe { start.cast::<Header>().write(Header { bytes, is_weights }) };
    // SAFETY: `bytes` is at least `HEADER_BYTES`.
    Ok((unsafe { start.add(HEADER_BYTES) }, bytes))
}

fn small(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, HEADER_BYTES).expect("below 256 KiB with a power of two")
}

/// Counts `bytes` more bytes for a run, or refuses them. `own` includes these bytes. This does not allocate.
pub(crate) fn reserve_for_run(bytes: usize, own: usize) -> Result<(), NoMemory> {
    or_reclaim(bytes, || {
        let headroom = Headroom::lock();
        headroom.spare(purpose(own), bytes, bytes)?;
        mapped(0, bytes);
        Ok(())
    })
}

/// The purpose, and so the limit, for a run with `own` bytes.
fn purpose(own: usize) -> Purpose {
    if own <= FEW_BYTES { Purpose::Request } else { Purpose::Run }
}

/// Weights that an engine in Rust allocated. They are counted until this value is dropped.
#[derive(Debug)]
pub struct CountedWeights(usize);

impl CountedWeights {
    /// Counts `bytes` bytes.
    pub fn new(bytes: usize) -> CountedWeights {
        WEIGHTS.fetch_add(bytes, Ordering::Relaxed);
        CountedWeights(bytes)
    }
}

impl Drop for CountedWeights {
    fn drop(&mut self) {
        WEIGHTS.fetch_sub(self.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[track_caller]
    fn allocated(len: usize) -> NonNull<u8> {
        let ptr = allocate_for_run(len).expect("memory");
        assert!(ptr.addr().get().is_multiple_of(64));
        // SAFETY: there are `len` bytes.
        unsafe { ptr.write_bytes(7, len) };
        ptr
    }

    #[test]
    fn a_run_gets_no_more_at_one_time_than_it_may() {
        let (sizes, refused) = run_with_memory(10 * MIB, || {
            let first = allocated(6 * MIB);
            let second = allocate_for_run(6 * MIB);
            // SAFETY: allocated above, and used no more.
            unsafe { free_of_run(first) };
            let third = allocated(6 * MIB);
            // SAFETY: as above.
            unsafe { free_of_run(third) };
            second.map_err(|refused| refused.full.is_some_and(|(had, max)| had >= 6 * MIB && max == 10 * MIB)).err()
        });
        assert_eq!((sizes, refused.is_some()), (Some(true), true));
        let ((), refused) = run_with_memory(MIB, || {
            for _ in 0..100 {
                let ptr = allocated(100);
                // SAFETY: allocated above, and used no more.
                unsafe { free_of_run(ptr) };
            }
        });
        assert_eq!(refused, None);
    }

    #[test]
    fn many_small_allocations_count_as_one_large() {
        let (count, refused) = run_with_memory(MIB, || {
            let all: Vec<_> = std::iter::from_fn(|| allocate_for_run(1000).ok()).collect();
            for ptr in &all {
                // SAFETY: allocated above, and used no more.
                unsafe { free_of_run(*ptr) };
            }
            all.len()
        });
        assert_eq!(count, (MIB + MIB / SMALL_SHARE) / (1000 + HEADER_BYTES + READ_BEHIND_BYTES + OVERHEAD_BYTES));
        assert!(refused.is_some());
    }

    #[test]
    fn what_a_run_is_charged_counts_with_what_it_was_given() {
        let (refused, last) = run_with_memory(10 * MIB, || {
            let first = allocated(6 * MIB);
            assert_eq!(charge_run(|| 3 * MIB), Ok(()));
            let refused = (charge_run(|| 2 * MIB).is_err(), allocate_for_run(2 * MIB).is_err());
            credit_run(|| 2 * MIB);
            assert_eq!(charge_run(|| 2 * MIB), Ok(()));
            // SAFETY: allocated above, and used no more.
            unsafe { free_of_run(first) };
            assert_eq!(charge_run(|| 6 * MIB), Ok(()));
            // More bytes than the run was charged, as if another run had made the allocations.
            credit_run(|| 100 * MIB);
            assert_eq!(charge_run(|| 10 * MIB), Ok(()));
            refused
        });
        assert_eq!((refused, last.is_some()), ((true, true), true));
        // Only runs are charged.
        assert_eq!(charge_run(|| usize::MAX), Ok(()));
    }

    #[test]
    fn weights_are_counted_apart_and_a_run_may_free_them() {
        for len in [10, 3 * MIB] {
            let before = WEIGHTS.load(Ordering::Relaxed);
            let (ptr, kept) = load_with_memory(|| {
                // SAFETY: allocated here, and used no more.
                unsafe { free_of_run(allocated(5 * MIB)) };
                allocated(len)
            });
            assert!((len..len + MIB).contains(&kept), "what was freed before the end is not kept: {kept} of {len}");
            assert!(WEIGHTS.load(Ordering::Relaxed) >= before + len);
            let ((), kept) = load_with_memory(|| {
                // SAFETY: as above.
                unsafe { free_of_run(ptr) };
            });
            assert_eq!(kept, 0, "another load made it");
            let (ptr, _) = load_with_memory(|| allocated(len));
            let ((), refused) = run_with_memory(0, || {
                // SAFETY: allocated above, and used no more.
                unsafe { free_of_run(ptr) };
            });
            assert_eq!(refused, None);
        }
    }

    #[test]
    fn a_run_that_can_end_ends_before_it_is_refused_any() {
        let few = FEW_BYTES;
        for (own, all, expected) in [
            ((75, 100), (0, 1000), None),
            ((76, 100), (0, 1000), Some((76, 100))),
            ((few, usize::MAX), (900, 1000), None),
            ((few + 1, usize::MAX), (750, 1000), None),
            ((few + 1, usize::MAX), (751, 1000), Some((751, 1000))),
        ] {
            assert_eq!(is_nearly_full(own, all, 0), expected, "{own:?} {all:?}");
        }
        assert_eq!(is_nearly_full((40, 100), (0, usize::MAX), 60), None);
        assert_eq!(is_nearly_full((40, 100), (0, usize::MAX), 61), Some((40, 100)));
    }

    #[test]
    fn more_than_there_is_is_refused() {
        for len in [usize::MAX, isize::MAX as usize] {
            assert!(allocate_for_run(len).is_err());
            assert!(run_with_memory(usize::MAX, || allocate_for_run(len)).1.is_some());
        }
    }
}
