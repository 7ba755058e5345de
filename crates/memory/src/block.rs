//! Where does heap memory for tensors come from, and where does it go afterwards?
//!
//! Touching fresh pages costs about eight times as much as reusing them, so large blocks are kept in a small pool. [`trim_pool`] returns the blocks that were
//! not used lately to the system. Its caller decides how often. [`crate::unmapping`] says which thread unmaps a block.
//!
//! A client may choose a size that is not available: [`Block::try_new`] then returns an error. [`crate::headroom`] says how much memory it must
//! leave free.

mod reclaim;

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, TryLockError};

use nerite_locks::Mutex;

use crate::headroom::{Headroom, NoMemory, Purpose, mapped};
use crate::large;
use crate::page::{PAGE_BYTES_MAX, PAGE_BYTES_MIN};
use crate::unmapping::{Mapping, UNMAPPER, unmap};

pub(crate) use reclaim::{or_reclaim, reclaim_bytes, reclaimable_bytes};

/// Alignment of every block: a cache line, and the most that any runtime needs.
const BLOCK_ALIGN: usize = 64;
/// Blocks of this size and more have their own mapping and are pooled.
pub const POOLED_BYTES_MIN: usize = 256 << 10;
/// The pool never holds more bytes than this. A block that does not fit is unmapped.
const POOL_BYTES_MAX: usize = 512 << 20;
/// The most blocks in the pool.
const POOL_BLOCKS_MAX: usize = 64;
/// Mappings of this size and more use huge pages.
const HUGE_BYTES_MIN: usize = 4 << 20;
const _: () = assert!(HUGE_BYTES_MIN >= POOLED_BYTES_MIN);
const _: () = assert!(PAGE_BYTES_MIN.is_multiple_of(BLOCK_ALIGN));

/// Memory of this process alone, aligned to 64 bytes, always initialised.
pub struct Block {
    ptr: NonNull<u8>,
    capacity: usize,
    /// Whether all bytes were zero when its owner got it.
    was_zero: bool,
}

/// A block whose bytes are written while Buffers over them live: see [`crate::Buffer::rewrite`].
pub struct RewritableBlock(Block);

impl RewritableBlock {
    pub(crate) fn new(block: Block) -> RewritableBlock {
        RewritableBlock(block)
    }

    /// The size of the block in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Whether all these bytes lie in the block.
    pub(crate) fn holds(&self, ptr: NonNull<u8>, len: usize) -> bool {
        let before = ptr.addr().get().checked_sub(self.0.as_ptr().addr().get());
        before.and_then(|before| self.0.capacity().checked_sub(before)).is_some_and(|left| len <= left)
    }
}

// SAFETY: a Block owns its memory like a Box does; there is no thread affinity.
unsafe impl Send for Block {}
// SAFETY: a shared Block gives out no reference. Its users, Buffer and Slot, make sure that no thread reads bytes that another one writes.
unsafe impl Sync for Block {}
struct Pooled {
    block: Block,
    idle_rounds: u32,
}

/// The pooled blocks, in the order in which they were returned.
static POOL: Mutex<Vec<Pooled>> = Mutex::new(Vec::new());
/// The limit that [`limit_pool`] set.
static POOL_BYTES_LIMIT: AtomicUsize = AtomicUsize::new(POOL_BYTES_MAX);

/// Limits the pool, and the freed large allocations that are kept, to `bytes` each. The pool never exceeds 512 MiB.
pub fn limit_pool(bytes: u64) {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(POOL_BYTES_MAX);
    POOL_BYTES_LIMIT.store(bytes, Ordering::Relaxed);
    large::limit(bytes);
}

impl Block {
    /// At least `len` bytes. Fresh memory is zero. Pooled memory has the bytes of its last user in this process. If there is no memory, the process ends. So
    /// this is only for sizes that no client chose. For others see [`Block::try_new`].
    pub fn new(len: usize) -> Block {
        Block::obtain(len, None).unwrap_or_else(|_| {
            handle_alloc_error(Layout::from_size_align(len, BLOCK_ALIGN).unwrap_or(Layout::new::<Block>()))
        })
    }

    /// As [`Block::new`], for a size that a client chose.
    pub fn try_new(len: usize) -> Result<Block, NoMemory> {
        Block::obtain(len, Some(Purpose::Request))
    }

    /// At least `len` bytes from the pool, if it has a block of that size. Takes no memory from the system.
    pub(crate) fn pooled(len: usize) -> Option<Block> {
        if len >= POOLED_BYTES_MIN { take_pooled(len.checked_next_multiple_of(PAGE_BYTES_MAX)?) } else { None }
    }

    /// At least `len` bytes. Without a purpose, no limit of [`crate::headroom`] applies.
    fn obtain(len: usize, purpose: Option<Purpose>) -> Result<Block, NoMemory> {
        let refused = NoMemory::refused(len);
        if len >= POOLED_BYTES_MIN {
            return Block::large(len, purpose);
        }
        let capacity = len.max(1);
        let layout = Layout::from_size_align(capacity, BLOCK_ALIGN).expect("below 256 KiB with a power of two");
        // SAFETY: the layout's size is not zero, by the `max` above.
        let ptr = unsafe { alloc_zeroed(layout) };
        Ok(Block { ptr: NonNull::new(ptr).ok_or(refused)?, capacity, was_zero: true })
    }

    /// At least `len` bytes, [`POOLED_BYTES_MIN`] or more, from the pool or from the system.
    pub(crate) fn large(len: usize, purpose: Option<Purpose>) -> Result<Block, NoMemory> {
        Block::pooled(len).map_or_else(|| Block::fresh(len, purpose), Ok)
    }

    /// At least `len` bytes, [`POOLED_BYTES_MIN`] or more, from the system.
    pub(crate) fn fresh(len: usize, purpose: Option<Purpose>) -> Result<Block, NoMemory> {
        let capacity = len.checked_next_multiple_of(PAGE_BYTES_MAX).ok_or(NoMemory::refused(len))?;
        or_reclaim(capacity, || Block::map(len, capacity, purpose))
    }

    /// A mapping of `capacity` bytes for a block of `len`. With a purpose, it must leave as many bytes free as [`crate::headroom`] demands.
    fn map(len: usize, capacity: usize, purpose: Option<Purpose>) -> Result<Block, NoMemory> {
        let refused = NoMemory::refused(len);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let headroom = Headroom::lock();
        let spare = purpose.map_or(Ok(0), |purpose| headroom.spare(purpose, len, capacity))?;
        let all = capacity.checked_add(spare).ok_or(refused)?;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory of ours.
        let ptr = unsafe { libc::mmap(std::ptr::null_mut(), all, prot, flags, -1, 0) };
        if ptr == libc::MAP_FAILED {
            return Err(refused);
        }
        mapped(0, capacity);
        Ok(Block::of_mapping(NonNull::new(ptr.cast()).ok_or(refused)?, capacity, spare))
    }

    /// A block of the first `capacity` bytes of a mapping. The `spare` bytes behind them are unmapped.
    fn of_mapping(ptr: NonNull<u8>, capacity: usize, spare: usize) -> Block {
        if spare > 0 {
            // SAFETY: the mapping reaches `spare` bytes beyond `capacity`, so the sum lies within it.
            let behind = unsafe { ptr.add(capacity) };
            // `capacity` is a multiple of the largest page, so the range begins at a page. munmap would refuse another.
            // SAFETY: the last `spare` bytes of a mapping that was just made or enlarged: nothing points there yet.
            unsafe { libc::munmap(behind.as_ptr().cast(), spare) };
        }
        if capacity >= HUGE_BYTES_MIN && !cfg!(miri) {
            // A hint to the kernel. If the system allows huge pages, the first accesses cause fewer page faults.
            // SAFETY: the range is the mapping without the spare bytes.
            unsafe { libc::madvise(ptr.as_ptr().cast(), capacity, libc::MADV_HUGEPAGE) };
        }
        Block { ptr, capacity, was_zero: true }
    }

    /// Whether [`Block::try_grow`] can enlarge the block. Only mappings can grow.
    pub(crate) fn can_grow(&self) -> bool {
        self.capacity >= POOLED_BYTES_MIN
    }

    /// Enlarges the block to at least `len` bytes. The kernel moves the pages to a larger range of addresses, and no byte is copied. New bytes are zero. On
    /// failure the block is unchanged.
    pub(crate) fn try_grow(&mut self, len: usize) -> Result<(), NoMemory> {
        if len <= self.capacity {
            return Ok(());
        }
        let refused = NoMemory::refused(len);
        assert!(self.can_grow(), "{} bytes of the allocator's cannot be moved as pages", self.capacity);
        let capacity = len.checked_next_multiple_of(PAGE_BYTES_MAX).ok_or(refused)?;
        let (from, had) = (self.ptr.as_ptr().cast(), self.capacity);
        let grown = or_reclaim(capacity - had, || {
            let headroom = Headroom::lock();
            let spare = headroom.spare(Purpose::Request, len, capacity - had)?;
            let all = capacity.checked_add(spare).ok_or(refused)?;
            // SAFETY: `map` made exactly this mapping, or an earlier call of this function; we are its only owner, and
            // `&mut self` means that no address in it is in use.
            let moved = unsafe { libc::mremap(from, had, all, libc::MREMAP_MAYMOVE) };
            if moved == libc::MAP_FAILED {
                return Err(refused);
            }
            mapped(had, capacity);
            Ok(Block::of_mapping(NonNull::new(moved.cast()).ok_or(refused)?, capacity, spare))
        })?;
        (self.ptr, self.capacity, self.was_zero) = (grown.ptr, grown.capacity, false);
        // `self` owns the mapping now. Dropping `grown` would unmap it.
        std::mem::forget(grown);
        Ok(())
    }

    /// First byte.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Whether all bytes were zero when the owner got the block. This is the case if the block was never used before.
    pub(crate) fn was_zero(&self) -> bool {
        self.was_zero
    }

    /// Call this before the block gets another user, who finds the bytes of this user in it.
    pub(crate) fn pass_on(&mut self) {
        self.was_zero = false;
    }

    /// Bytes that may be used: at least the requested number.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// A block of [`POOLED_BYTES_MIN`] bytes or more at this address.
    ///
    /// # Safety
    /// The address and the capacity are those of a [`Block::large`] that was forgotten. The caller owns its memory.
    pub(crate) unsafe fn from_large(ptr: NonNull<u8>, capacity: usize) -> Block {
        debug_assert!(capacity >= POOLED_BYTES_MIN, "{capacity} bytes of the allocator's are no large block");
        Block { ptr, capacity, was_zero: false }
    }

    /// The block's mapping, which the caller unmaps. Only blocks of [`POOLED_BYTES_MIN`] and more have a mapping.
    fn into_mapping(self) -> Mapping {
        assert!(self.capacity >= POOLED_BYTES_MIN, "{} bytes of the allocator's are no mapping", self.capacity);
        let block = ManuallyDrop::new(self);
        // SAFETY: `map` or `try_grow` made exactly this mapping. We are its last owner, and the drop of the block does not run.
        unsafe { Mapping::new(block.ptr, block.capacity, true) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.capacity < POOLED_BYTES_MIN {
            let layout = Layout::from_size_align(self.capacity, BLOCK_ALIGN).expect("the layout that `new` used");
            // SAFETY: `new` allocated it with this layout, and we are its last owner.
            return unsafe { dealloc(self.ptr.as_ptr(), layout) };
        }
        // From here on this value owns the memory. Nothing frees it through `self`.
        let block = Block { ptr: self.ptr, capacity: self.capacity, was_zero: false };
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        let held: usize = pool.iter().map(|p| p.block.capacity).sum();
        if held + self.capacity > POOL_BYTES_LIMIT.load(Ordering::Relaxed) || pool.len() >= POOL_BLOCKS_MAX {
            drop(pool);
            return unmap(block.into_mapping());
        }
        if pool.capacity() == 0 {
            // The capacity is reserved once, before the first push. Otherwise a later push might wait for memory while it holds the pool's lock, and other
            // threads could not return their blocks.
            pool.reserve_exact(POOL_BLOCKS_MAX);
        }
        pool.push(Pooled { block, idle_rounds: 0 });
    }
}

/// Takes the smallest pooled block that has at least `capacity` bytes and at most twice as many. If several are equally small, it takes the one that was
/// returned last, because that one is most likely still in the processor's cache.
fn take_pooled(capacity: usize) -> Option<Block> {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let fits = |p: &Pooled| p.block.capacity >= capacity && p.block.capacity <= capacity.saturating_mul(2);
    let (at, _) = pool.iter().enumerate().rev().filter(|(_, p)| fits(p)).min_by_key(|(_, p)| p.block.capacity)?;
    Some(pool.remove(at).block)
}

/// Takes a block out of the pool, to unmap it. This does not wait for the pool's lock, because the calling thread may hold the lock when it runs out of
/// memory.
pub(crate) fn pop() -> Option<Mapping> {
    let last = match POOL.try_lock() {
        Ok(mut pool) => pool.pop(),
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().pop(),
        Err(TryLockError::WouldBlock) => None,
    };
    last.map(|pooled| pooled.block.into_mapping())
}

/// Bytes of the blocks in the pool.
pub fn pooled_bytes() -> usize {
    POOL.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|p| p.block.capacity).sum()
}

/// Gives the blocks and large allocations that were unused during the last `rounds_max` calls of this function back to the system. Returns their size in bytes.
/// Some of the memory may be unmapped later, on another thread.
pub fn trim_pool(rounds_max: u32) -> usize {
    let mut stale = Vec::with_capacity(POOL_BLOCKS_MAX);
    {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = 0;
        while at < pool.len() {
            pool[at].idle_rounds += 1;
            if pool[at].idle_rounds > rounds_max {
                stale.push(pool.remove(at));
            } else {
                at += 1;
            }
        }
    }
    let mut freed = large::trim(rounds_max);
    for pooled in stale {
        freed += pooled.block.capacity;
        unmap(pooled.block.into_mapping());
    }
    UNMAPPER.resume();
    freed
}

/// Returns the free memory that the heap of `malloc` keeps to the system. This takes some time, so call it when the server is idle.
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

    /// Held by tests that depend on the pool's contents or empty the pool.
    static POOL_TESTS: Mutex<()> = Mutex::new(());

    #[test]
    fn blocks_of_every_size_are_aligned_and_writable_to_the_end() {
        for len in [0, 1, 63, 4097, POOLED_BYTES_MIN - 1, POOLED_BYTES_MIN, (8 << 20) + 1] {
            let block = Block::new(len);
            assert!(block.capacity() >= len);
            assert!(len < POOLED_BYTES_MIN || block.capacity().is_multiple_of(PAGE_BYTES_MAX), "{len}");
            assert_eq!(block.as_ptr().as_ptr() as usize % BLOCK_ALIGN, 0);
            // SAFETY: the offset of the last byte is within the block.
            let last = unsafe { block.as_ptr().add(block.capacity() - 1) };
            // SAFETY: a byte of the block's own memory, which nobody else has.
            unsafe { last.write(7) };
        }
    }

    #[test]
    fn a_block_grows_without_losing_a_byte_and_the_new_ones_are_zero() {
        let mut block = Block::try_new(POOLED_BYTES_MIN).expect("a quarter of a MiB");
        let last = |block: &Block, len: usize| {
            // SAFETY: all callers pass a length of at most the block's capacity, so the offset is within the block.
            unsafe { block.as_ptr().add(len - 1) }
        };
        let (mut had, mut mark) = (block.capacity(), 1);
        for len in [had, had + 1, 3 << 20, 5 << 20, 9 << 20] {
            // SAFETY: a byte of the block's own memory, which nobody else has.
            unsafe { last(&block, had).write(mark) };
            block.try_grow(len).expect("some MiB");
            assert!(block.capacity() >= len);
            // SAFETY: as above.
            assert_eq!(unsafe { last(&block, had).read() }, mark, "{len}");
            if block.capacity() > had {
                // SAFETY: as above.
                assert_eq!(unsafe { last(&block, block.capacity()).read() }, 0, "{len}");
            }
            had = block.capacity();
            mark += 1;
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri ends where the system would refuse")]
    fn more_than_there_is_is_refused_and_changes_nothing() {
        let _alone = POOL_TESTS.lock().unwrap_or_else(PoisonError::into_inner);
        for len in [usize::MAX, isize::MAX as usize, 1 << 50] {
            assert_eq!(Block::try_new(len).err().map(|refused| refused.requested), Some(len));
            let mut block = Block::try_new(1 << 20).expect("a MiB");
            let (ptr, capacity) = (block.as_ptr(), block.capacity());
            assert_eq!(block.try_grow(len).map_err(|refused| refused.requested), Err(len));
            assert_eq!((block.as_ptr(), block.capacity()), (ptr, capacity));
        }
    }

    #[test]
    fn the_block_that_was_returned_last_is_reused_first() {
        let _alone = POOL_TESTS.lock().unwrap_or_else(PoisonError::into_inner);
        let len = 29 << 20;
        let blocks = [(); 3].map(|()| Block::new(len));
        let addresses = blocks.each_ref().map(Block::as_ptr);
        blocks.into_iter().for_each(drop);
        let again = [(); 3].map(|()| Block::new(len));
        assert_eq!(again.map(|block| block.as_ptr()), [addresses[2], addresses[1], addresses[0]]);
        trim_pool(0);
    }

    #[test]
    fn a_large_block_is_reused_and_an_idle_one_is_trimmed() {
        let _alone = POOL_TESTS.lock().unwrap_or_else(PoisonError::into_inner);
        let len = 37 << 20;
        let first = Block::new(len).as_ptr();
        assert_eq!(Block::new(len).as_ptr(), first);
        assert!(pooled_bytes() >= len);
        trim_pool(0);
        assert!(pooled_bytes() < len);
    }
}
