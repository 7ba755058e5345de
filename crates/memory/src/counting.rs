//! How often does a program allocate?
//!
//! This is for tests that check the number of allocations per request. The binary of such a test sets [`CountingHeap`] as its allocator:
//!
//! ```
//! #[global_allocator]
//! static HEAP: nerite_memory::CountingHeap = nerite_memory::CountingHeap;
//!
//! let before = nerite_memory::allocations();
//! drop(Box::new(7));
//! assert_eq!(nerite_memory::allocations() - before, 1);
//! ```

use std::alloc::{GlobalAlloc, Layout};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nerite_locks::Mutex;

use crate::Heap;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static IS_TRACING: AtomicBool = AtomicBool::new(false);
static TRACED: Mutex<Vec<Backtrace>> = Mutex::new(Vec::new());

thread_local! {
    /// Whether allocations and copies of this thread are not counted. It is also true while a stack is captured, because that allocates.
    static IS_EXEMPT: Cell<bool> = const { Cell::new(false) };
}

/// The server's allocator, which also counts allocations.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingHeap;

/// Allocations and reallocations so far, of all threads that are not exempt.
pub fn allocations() -> usize {
    ALLOCATIONS.load(Ordering::SeqCst)
}

/// Stops counting the allocations and the copies of this thread. Call it on the threads of a test's client, which is not part of the server.
pub fn exempt_this_thread() {
    IS_EXEMPT.set(true);
}

/// Whether this thread is not counted.
pub(crate) fn is_exempt() -> bool {
    IS_EXEMPT.get()
}

/// Starts to keep the stack of each counted allocation, until [`traced_allocations`] is called.
pub fn trace_allocations() {
    IS_TRACING.store(true, Ordering::SeqCst);
}

/// Stops tracing. Returns the stacks that were kept.
pub fn traced_allocations() -> Vec<Backtrace> {
    IS_TRACING.store(false, Ordering::SeqCst);
    std::mem::take(&mut *TRACED.lock().unwrap_or_else(PoisonError::into_inner))
}

fn count() {
    if !IS_EXEMPT.get() {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        if IS_TRACING.load(Ordering::Relaxed) {
            trace();
        }
    }
}

#[cold]
fn trace() {
    IS_EXEMPT.set(true);
    let stack = Backtrace::force_capture();
    TRACED.lock().unwrap_or_else(PoisonError::into_inner).push(stack);
    IS_EXEMPT.set(false);
}

// SAFETY: each function passes its arguments to the function of `Heap` that has the same name, and returns what that returned, so the promises of both sides
// are those of `Heap`. Counting changes neither: the thread-local flag has a constant initial value and no destructor. Allocations of the tracing use this
// allocator too, but they are neither counted nor traced.
unsafe impl GlobalAlloc for CountingHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { Heap.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { Heap.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: `block` came from one of these functions, and so from `Heap`, with this layout.
        unsafe { Heap.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: `block` came from one of these functions, and so from `Heap`, with this layout.
        unsafe { Heap.realloc(block, layout, size) }
    }
}
