//! Is an allocation refused because of memory that waits to be unmapped?
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use nerite_memory::{Block, Heap, UNMAPPER, limit_pool};

#[global_allocator]
static HEAP: Heap = Heap;

const MIB: usize = 1 << 20;

/// Sends a message, and then blocks the thread that drops it.
struct Halt(Sender<()>, Receiver<()>);

impl Drop for Halt {
    fn drop(&mut self) {
        let _ = self.0.send(());
        let _ = self.1.recv_timeout(Duration::from_mins(1));
    }
}

/// The bytes of blocks that count, from the error of an allocation that is too large.
fn taken() -> usize {
    Block::try_new(isize::MAX as usize).err().and_then(|refused| refused.full).unwrap().0
}

/// Limits the address space to the bytes that are used now and `bytes` more.
fn limit_address_space(bytes: usize) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let used = line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024;
    let limit = libc::rlimit { rlim_cur: (used + bytes) as libc::rlim_t, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure is complete and outlives the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
}

/// This file has only one test, because the limit applies to the whole process.
#[test]
#[ignore = "alone: reads VmSize and limits its address space"]
fn an_allocation_unmaps_as_much_of_what_waits_as_it_needs() {
    limit_pool(0);
    let ((halts, is_halted), (go_on, answer)) = (channel(), channel());
    UNMAPPER.push(0, Box::new(Halt(halts, answer)));
    is_halted.recv().unwrap();
    drop([512, 512].map(|mib| Block::new(mib * MIB)));
    assert_eq!(taken(), 1024 * MIB);
    limit_address_space(32 * MIB);
    let block = Block::try_new(200 * MIB).unwrap();
    let waiting = taken() - block.capacity();
    // The block, the spare bytes and less than two pieces.
    assert!((600 * MIB..1024 * MIB).contains(&waiting), "{} MiB wait", waiting / MIB);
    let bytes = black_box(vec![1u8; 200 * MIB]);
    assert!(taken() - block.capacity() < waiting);
    assert!(bytes.iter().all(|byte| *byte == 1));
    drop(go_on);
}
