//! Where do bytes wait on their way between host and device?
//!
//! Blocks are locked when they are first needed, and kept. Their sizes are powers of two, so that the next request of about the same size can use a
//! block. If the pool is full, memory comes from the heap. Such transfers are slower. They are refused only if requests hold a large part of the
//! host's memory already.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_memory::{Access, Block, MemoryOwner, PinnedBytes, Place, Slot, Staging, StagingFull};

use crate::driver::Driver;
use crate::limits::{HEAP_SHARE, PINNED_BLOCK_BYTES_MIN};
use crate::pinned::PinnedMemory;

/// Page-locked memory that is reused: `--pinned-memory-pool-byte-size`.
pub struct PinnedPool {
    driver: Arc<Driver>,
    shared: Arc<Shared>,
}

struct Shared {
    bytes_max: u64,
    heap_max: u64,
    heap_used: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    idle: Vec<PinnedMemory>,
    /// Bytes of all blocks, idle or not.
    locked: u64,
    used: u64,
    /// Whether a refusal by the driver was logged already.
    is_logged: bool,
}

/// Heap memory in use.
struct Heap {
    shared: Arc<Shared>,
    block: Block,
    len: u64,
}

/// A block in use.
struct Held {
    shared: Arc<Shared>,
    /// Taken only by Drop.
    block: Option<PinnedMemory>,
}

impl PinnedPool {
    /// A pool of at most `bytes_max` bytes. None is locked yet.
    pub fn new(driver: &Arc<Driver>, bytes_max: u64) -> PinnedPool {
        let heap_max = nerite_memory::allowed_bytes() / HEAP_SHARE;
        let shared = Shared { bytes_max, heap_max, heap_used: AtomicU64::new(0), state: Mutex::default() };
        PinnedPool { driver: Arc::clone(driver), shared: Arc::new(shared) }
    }

    fn block(&self, len: usize) -> Option<PinnedMemory> {
        let size = len.checked_next_power_of_two()?.max(PINNED_BLOCK_BYTES_MIN);
        let mut given_up = Vec::new();
        let admitted = {
            let mut state = self.shared.lock();
            if let Some(at) = state.idle.iter().position(|block| block.len() == size) {
                state.used += size as u64;
                return Some(state.idle.swap_remove(at));
            }
            state.make_room(size as u64, self.shared.bytes_max, &mut given_up)
        };
        // Dropped outside the lock, because the driver takes long to free blocks.
        drop(given_up);
        if !admitted {
            return None;
        }
        match PinnedMemory::allocate(&self.driver, size) {
            Ok(block) => Some(block),
            Err(error) => {
                let mut state = self.shared.lock();
                state.locked -= size as u64;
                state.used -= size as u64;
                if !std::mem::replace(&mut state.is_logged, true) {
                    log::warn!("no page-locked memory for transfers, which are slower without it: {error}");
                }
                None
            }
        }
    }
}

impl State {
    /// Counts a new block of `size` bytes, if it fits after idle blocks of other sizes are freed.
    fn make_room(&mut self, size: u64, bytes_max: u64, given_up: &mut Vec<PinnedMemory>) -> bool {
        // Every block that is held is counted in `used`, so the rest is idle.
        if self.used + size > bytes_max {
            return false;
        }
        while self.locked + size > bytes_max {
            let Some(block) = self.idle.pop() else { return false };
            self.locked -= block.len() as u64;
            given_up.push(block);
        }
        self.locked += size;
        self.used += size;
        true
    }
}

impl Staging for PinnedPool {
    fn slot(&self, len: usize) -> Result<Slot, StagingFull> {
        let Some(block) = self.block(len) else { return Heap::slot(&self.shared, len) };
        let at = block.at();
        let keep = Held { shared: Arc::clone(&self.shared), block: Some(block) };
        // SAFETY: the block has at least `len` bytes, initialised by its maker, which `keep` holds; it was taken out of the
        // pool, so nobody else has it.
        Ok(unsafe { Slot::from_raw(at, len, Place::Pinned, Access::Private, Arc::new(keep)) })
    }

    fn pinned(&self) -> PinnedBytes {
        PinnedBytes { total: self.shared.bytes_max, used: self.shared.lock().used }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Heap {
    fn slot(shared: &Arc<Shared>, len: usize) -> Result<Slot, StagingFull> {
        let more = |used: u64| used.checked_add(len as u64).filter(|sum| *sum <= shared.heap_max);
        let taken = shared.heap_used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.map_err(|used| StagingFull { requested: len, used, max: shared.heap_max })?;
        let block = Block::try_new(len).map_err(|refused| {
            let before = shared.heap_used.fetch_sub(len as u64, Ordering::AcqRel);
            StagingFull::of(refused, before.saturating_sub(len as u64))
        })?;
        let heap = Heap { shared: Arc::clone(shared), block, len: len as u64 };
        let at = heap.block.as_ptr();
        // SAFETY: a fresh block has at least `len` bytes, always initialised, which the Arc handed over holds; nobody else
        // has it.
        Ok(unsafe { Slot::from_raw(at, len, Place::Host, Access::Private, Arc::new(heap)) })
    }
}

impl MemoryOwner for Heap {}

impl Drop for Heap {
    fn drop(&mut self) {
        self.shared.heap_used.fetch_sub(self.len, Ordering::AcqRel);
    }
}

impl MemoryOwner for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else { return };
        let mut state = self.shared.lock();
        state.used -= block.len() as u64;
        state.idle.push(block);
    }
}

impl std::fmt::Debug for PinnedPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PinnedPool({:?})", self.pinned())
    }
}
