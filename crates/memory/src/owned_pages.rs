//! Which large allocations did a bounded thread make, so that their pages can go back to the system if it is lost?
//!
//! Another thread may free such an allocation, and the memory may then get another owner. So every thread removes an allocation from the list before it frees
//! it.

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use nerite_locks::Mutex;

/// The most allocations that are registered. The pages of further ones are lost with their thread.
const REGISTERED_MAX: usize = 512;
/// The pause between two pieces.
const PAUSE: Duration = Duration::from_micros(200);
/// Pages that are returned while the lock is held. It takes about 1 ms.
const PIECE_BYTES: usize = 16 << 20;

/// One allocation, with a mapping of its own.
#[derive(Clone, Copy)]
struct Owned {
    start: *mut u8,
    bytes: usize,
    /// Bytes that were returned already.
    returned: usize,
    /// The thread that made the allocation, identified by the address of its bound.
    owner: usize,
}

struct Registered {
    all: [Owned; REGISTERED_MAX],
    count: usize,
}

// SAFETY: the addresses are only compared, and used for `madvise` while the allocations live. Mappings have no thread affinity.
unsafe impl Send for Registered {}

static REGISTERED: Mutex<Registered> = Mutex::new(Registered {
    all: [Owned { start: ptr::null_mut(), bytes: 0, returned: 0, owner: 0 }; REGISTERED_MAX],
    count: 0,
});
/// The number of registered allocations. Most programs have none, and then no thread takes the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Registers an allocation of whole pages that the thread `owner` has just made.
pub(crate) fn add(start: *mut u8, bytes: usize, owner: usize) {
    let mut registered = registered();
    if registered.count < REGISTERED_MAX {
        let at = registered.count;
        registered.all[at] = Owned { start, bytes, returned: 0, owner };
        registered.count += 1;
        COUNT.store(registered.count, Ordering::Relaxed);
    }
}

/// Forgets an allocation that is about to be freed. An address that is not registered is ignored.
#[inline]
pub(crate) fn remove(start: *mut u8) {
    // A thread that frees another thread's allocation got the address from that thread. That synchronises the two threads, so this one sees the count too.
    if COUNT.load(Ordering::Relaxed) > 0 {
        registered().remove_if(|owned| owned.start == start);
    }
}

/// Forgets all allocations of this thread.
pub(crate) fn remove_all(owner: usize) {
    if COUNT.load(Ordering::Relaxed) > 0 {
        registered().remove_if(|owned| owned.owner == owner);
    }
}

/// Returns the pages of all allocations of this thread to the system, and forgets them. Returns their bytes. It does not allocate.
///
/// # Safety
/// Nobody reads or writes this memory any more, except to free it.
#[expect(clippy::disallowed_methods, reason = "the thread is lost, and nobody waits for it")]
pub(crate) unsafe fn return_pages(owner: usize) -> usize {
    let mut returned = 0;
    loop {
        // Other threads may free an allocation between two pieces. Then it is not registered any more.
        let mut registered = registered();
        let Some(owned) = registered.next_of(owner) else { return returned };
        let piece = PIECE_BYTES.min(owned.bytes - owned.returned);
        // SAFETY: the pieces add up to the allocation's bytes, so this one begins within it.
        let start = unsafe { owned.start.add(owned.returned) };
        // SAFETY: the allocation lives as long as it is registered, and it has whole pages of a mapping of its own.
        unsafe { libc::madvise(start.cast(), piece, libc::MADV_DONTNEED) };
        owned.returned += piece;
        returned += piece;
        drop(registered);
        // Without the pause, this thread would take the lock again before a waiting thread could.
        std::thread::sleep(PAUSE);
    }
}

impl Registered {
    /// An allocation of this thread that has pages left to return. Allocations without such pages are forgotten.
    fn next_of(&mut self, owner: usize) -> Option<&mut Owned> {
        self.remove_if(|owned| owned.owner == owner && owned.returned == owned.bytes);
        let count = self.count;
        self.all[..count].iter_mut().find(|owned| owned.owner == owner)
    }

    fn remove_if(&mut self, is_meant: impl Fn(&Owned) -> bool) {
        let mut at = 0;
        while at < self.count {
            if is_meant(&self.all[at]) {
                self.count -= 1;
                self.all[at] = self.all[self.count];
            } else {
                at += 1;
            }
        }
        COUNT.store(self.count, Ordering::Relaxed);
    }
}

fn registered() -> MutexGuard<'static, Registered> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know madvise")]
    fn pages_are_returned_unless_another_thread_has_freed_them() {
        const LEN: usize = 20 << 20;
        let map = || {
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory of ours.
            let start = unsafe { libc::mmap(ptr::null_mut(), LEN, prot, flags, -1, 0) }.cast::<u8>();
            // SAFETY: a mapping of so many bytes.
            unsafe { start.write_bytes(7, LEN) };
            start
        };
        let maps = [map(), map(), map()];
        let (mine, other) = (1, 2);
        add(maps[0], LEN, mine);
        add(maps[1], LEN, mine);
        add(maps[2], LEN, other);
        remove(maps[1]);
        // SAFETY: nobody else uses the mappings.
        assert_eq!(unsafe { return_pages(mine) }, LEN);
        let last = maps.map(|start| {
            // SAFETY: the mapping has `LEN` bytes.
            let last = unsafe { start.add(LEN - 1) };
            // SAFETY: a byte of the mapping, which nobody writes now.
            unsafe { last.read() }
        });
        assert_eq!(last, [0, 7, 7]);
        remove_all(other);
        // SAFETY: as above.
        assert_eq!(unsafe { return_pages(other) }, 0);
        for start in maps {
            // SAFETY: exactly the mapping that was made, which nobody uses any more.
            unsafe { libc::munmap(start.cast(), LEN) };
        }
    }
}
