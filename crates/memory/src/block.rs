//! Where does heap memory for tensors come from, and where does it go afterwards?
//!
//! Touching fresh pages costs about eight times as much as reusing them, so large blocks go back to a small pool.
//! [`trim_pool`] gives what was not used lately back to the system; somebody with a clock calls it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use crate::keep::Keep;

/// Alignment of every block: a cache line, and as much as any runtime asks for.
const BLOCK_ALIGN: usize = 64;
/// Blocks of this size and more are mapped by themselves and pooled.
pub const POOLED_BYTES_MIN: usize = 256 << 10;
/// The pool never holds more than this; what does not fit is unmapped at once.
const POOL_BYTES_MAX: usize = 512 << 20;
/// Pooled blocks per process at the most.
const POOL_BLOCKS_MAX: usize = 64;
const PAGE: usize = 4096;

const _: () = assert!(PAGE.is_multiple_of(BLOCK_ALIGN));

/// Memory of this process alone, aligned to 64 bytes, always initialised.
pub struct Block {
    ptr: NonNull<u8>,
    capacity: usize,
}

// SAFETY: a Block owns its memory like a Box does; there is no thread affinity.
unsafe impl Send for Block {}
// SAFETY: a shared Block gives out no reference; its users (Buffer, Slot) keep reading and writing apart.
unsafe impl Sync for Block {}
impl Keep for Block {}

struct Pooled {
    block: Block,
    idle_rounds: u32,
}

static POOL: Mutex<Vec<Pooled>> = Mutex::new(Vec::new());

impl Block {
    /// At least `len` bytes. Fresh memory is zero; pooled memory holds what its last user in this process left.
    pub fn new(len: usize) -> Block {
        if len >= POOLED_BYTES_MIN {
            let capacity = len.div_ceil(PAGE) * PAGE;
            return take_pooled(capacity).unwrap_or_else(|| Block::map(capacity));
        }
        let capacity = len.max(1);
        let layout = Layout::from_size_align(capacity, BLOCK_ALIGN).expect("below 256 KiB with a power of two");
        // SAFETY: the layout's size is not zero, by the `max` above.
        let ptr = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr) else { handle_alloc_error(layout) };
        Block { ptr, capacity }
    }

    fn map(capacity: usize) -> Block {
        // Without reservation: a length that a client only declared must not be refused by the system, which would end us.
        let unreserved = if cfg!(miri) { 0 } else { libc::MAP_NORESERVE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | unreserved;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory of ours.
        let ptr = unsafe { libc::mmap(std::ptr::null_mut(), capacity, prot, flags, -1, 0) };
        let layout = Layout::from_size_align(capacity, PAGE).expect("a page-rounded size that mmap was asked for");
        if ptr == libc::MAP_FAILED {
            handle_alloc_error(layout);
        }
        if capacity >= 4 << 20 && !cfg!(miri) {
            // A hint only: fewer faults on first touch where the system allows huge pages.
            // SAFETY: the range is the mapping just made.
            unsafe { libc::madvise(ptr, capacity, libc::MADV_HUGEPAGE) };
        }
        let Some(ptr) = NonNull::new(ptr.cast()) else { handle_alloc_error(layout) };
        Block { ptr, capacity }
    }

    /// First byte.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Bytes that may be used: at least what was asked for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    fn release(&mut self) {
        if self.capacity >= POOLED_BYTES_MIN {
            // SAFETY: `map` made exactly this mapping, and nothing points into it any more: we are its last owner.
            unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.capacity) };
        } else {
            let layout = Layout::from_size_align(self.capacity, BLOCK_ALIGN).expect("the layout that `new` used");
            // SAFETY: `new` allocated it with this layout, and we are its last owner.
            unsafe { dealloc(self.ptr.as_ptr(), layout) };
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.capacity < POOLED_BYTES_MIN {
            return self.release();
        }
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        let held: usize = pool.iter().map(|p| p.block.capacity).sum();
        if held + self.capacity > POOL_BYTES_MAX || pool.len() >= POOL_BLOCKS_MAX {
            drop(pool);
            return self.release();
        }
        let block = Block { ptr: self.ptr, capacity: self.capacity };
        pool.push(Pooled { block, idle_rounds: 0 });
    }
}

/// The smallest pooled block that fits without wasting more than half of itself.
fn take_pooled(capacity: usize) -> Option<Block> {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let fits = |p: &Pooled| p.block.capacity >= capacity && p.block.capacity <= capacity.saturating_mul(2);
    let (at, _) = pool.iter().enumerate().filter(|(_, p)| fits(p)).min_by_key(|(_, p)| p.block.capacity)?;
    Some(pool.swap_remove(at).block)
}

/// Bytes that lie unused in the pool.
pub fn pooled_bytes() -> usize {
    POOL.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|p| p.block.capacity).sum()
}

/// Gives blocks back to the system that lay unused through `rounds_max` calls of this function. Returns the bytes freed.
pub fn trim_pool(rounds_max: u32) -> usize {
    let mut stale = Vec::new();
    {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = 0;
        while at < pool.len() {
            pool[at].idle_rounds += 1;
            if pool[at].idle_rounds > rounds_max {
                stale.push(pool.swap_remove(at));
            } else {
                at += 1;
            }
        }
    }
    let mut freed = 0;
    for mut pooled in stale {
        freed += pooled.block.capacity;
        pooled.block.release();
        // `release` unmapped it; running Drop as well would put a dead block into the pool.
        std::mem::forget(pooled.block);
    }
    freed
}

/// Gives heap memory that `free` kept for later back to the system. Takes a moment; for when a server has nothing to do.
pub fn trim_heap() {
    #[cfg(all(target_env = "gnu", not(miri)))]
    // SAFETY: malloc_trim only walks the allocator's own free lists, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_every_size_are_aligned_and_writable_to_the_end() {
        for len in [0, 1, 63, 4097, POOLED_BYTES_MIN - 1, POOLED_BYTES_MIN, (8 << 20) + 1] {
            let block = Block::new(len);
            assert!(block.capacity() >= len);
            assert_eq!(block.as_ptr().as_ptr() as usize % BLOCK_ALIGN, 0);
            // SAFETY: the offset of the last byte is within the block.
            let last = unsafe { block.as_ptr().add(block.capacity() - 1) };
            // SAFETY: a byte of the block's own memory, which nobody else has.
            unsafe { last.write(7) };
        }
    }

    #[test]
    fn a_large_block_is_reused_and_an_idle_one_is_trimmed() {
        let len = 37 << 20;
        let first = Block::new(len).as_ptr();
        assert_eq!(Block::new(len).as_ptr(), first);
        assert!(pooled_bytes() >= len);
        trim_pool(0);
        assert!(pooled_bytes() < len);
    }
}
