//! Which thread unmaps private memory, and does the memory count until then?
#![allow(clippy::unwrap_used)]

#[path = "eventually/assert.rs"]
mod eventually;

use std::hint::black_box;
use std::ptr::without_provenance_mut;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use eventually::{PATIENCE, assert_eventually};
use nerite_memory::{Block, Heap, UNMAPPER, limit_pool};

#[global_allocator]
static HEAP: Heap = Heap;

/// Held by every test, because each test halts the only thread that unmaps.
static ALONE: Mutex<()> = Mutex::new(());
const MIB: usize = 1 << 20;
const MUCH: usize = 64 * MIB;

/// Sends the name of the thread that drops it, and waits for an answer.
struct Halt(Sender<Option<String>>, Receiver<()>);

impl Drop for Halt {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().name().map(str::to_owned));
        let _ = self.1.recv_timeout(PATIENCE);
    }
}

/// Calls `work` while the unmapping thread is halted.
#[track_caller]
fn halted(work: impl FnOnce()) {
    let ((name, name_seen), (go_on, answer)) = (channel(), channel());
    UNMAPPER.push(0, Box::new(Halt(name, answer)));
    assert_eq!(name_seen.recv_timeout(PATIENCE).unwrap().as_deref(), Some("nerite-unmap"));
    work();
    drop(go_on);
}

/// How many of the `len` bytes from `start` on are mapped. Both are multiples of a page.
fn mapped_bytes(start: usize, len: usize) -> usize {
    const PAGE: usize = 4096;
    let mut state = 0u8;
    // SAFETY: mincore reads no memory of the range, and writes one byte for one page.
    let is_mapped =
        |page: usize| unsafe { libc::mincore(without_provenance_mut(start + page), PAGE, &raw mut state) } == 0;
    (0..len).step_by(PAGE).map(is_mapped).filter(|is_mapped| *is_mapped).count() * PAGE
}

/// The bytes of blocks that count, from the error of an allocation that is too large.
fn taken() -> usize {
    Block::try_new(isize::MAX as usize).err().and_then(|refused| refused.full).unwrap().0
}

#[test]
fn a_block_that_is_not_kept_is_unmapped_on_another_thread_and_counts_until_then() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    limit_pool(0);
    let before = taken();
    let mut at = 0;
    halted(|| {
        let block = Block::new(MUCH);
        at = block.as_ptr().addr().get();
        drop(block);
        assert_eq!((mapped_bytes(at, MUCH), taken() - before), (MUCH, MUCH));
    });
    assert_eventually(taken, before);
}

#[test]
fn many_small_blocks_are_unmapped_on_another_thread_as_well() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    limit_pool(0);
    let before = taken();
    let blocks: Vec<_> = (0..64).map(|_| Block::new(MIB)).collect();
    halted(|| {
        drop(blocks);
        assert_eq!(taken() - before, 64 * MIB);
    });
    assert_eventually(taken, before);
}

#[test]
fn a_large_allocation_is_unmapped_on_another_thread_also_the_rest_of_one_that_shrinks() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = taken();
    halted(|| {
        let mut bytes = black_box(vec![1u8; MUCH]);
        let at = bytes.as_ptr().addr();
        bytes.truncate(MIB);
        bytes.shrink_to_fit();
        assert_eq!((bytes.as_ptr().addr(), bytes.capacity()), (at, MIB));
        assert_eq!(mapped_bytes(at, MUCH), MUCH);
        assert!(bytes.iter().all(|byte| *byte == 1));
        let large = black_box(vec![1u8; MUCH]);
        let at = large.as_ptr().addr();
        drop(large);
        assert_eq!(mapped_bytes(at, MUCH), MUCH);
        // All bytes except those that the first allocation has kept.
        assert_eq!(taken() - before, 2 * MUCH - MIB);
    });
    assert_eventually(taken, before);
}
