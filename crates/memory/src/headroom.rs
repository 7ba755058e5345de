//! How much memory may the next allocation take?
//!
//! ```text
//!   what the process may have
//!   ├── taken ──┤├── reserved ──┤├── free for the next allocation ──┤├── spare ──┤
//! ```
//! It is not enough to check whether there is memory: two threads that check at the same moment find the same free memory. So reserved bytes
//! that are not allocated yet are counted ([`crate::MemoryReservation`]), and an allocation must leave them free. It must also leave
//! [`SPARE_BYTES`] for the many small allocations that end the process when they fail.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{MutexGuard, OnceLock, PoisonError};

use nerite_locks::Mutex;

use crate::allowed::allowed_bytes;
use crate::page::PAGE_BYTES_MAX;

/// Bytes that an allocation whose size a client chose must leave free, if the memory of the process has a limit.
pub const SPARE_BYTES: usize = 64 << 20;
/// Blocks and reservations may use all memory of the process except for one part in this many.
const SYSTEM_SHARE: usize = 8;

const _: () = assert!(SPARE_BYTES.is_multiple_of(PAGE_BYTES_MAX));

/// Bytes of all reservations. The lock is also held while a thread maps more than it will keep, because other allocations could fail
/// meanwhile.
static RESERVED: Mutex<usize> = Mutex::new(0);
/// Bytes of all blocks' mappings, including those in the pool, and of private memory that waits to be unmapped.
pub(crate) static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// There is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory {
    /// Bytes asked for.
    pub requested: usize,
    /// Bytes that are taken or reserved, and how many may be, if that was the reason. `None` if the system refused.
    pub full: Option<(usize, usize)>,
}

impl NoMemory {
    /// The system refused.
    pub(crate) fn refused(requested: usize) -> NoMemory {
        NoMemory { requested, full: None }
    }
}

impl std::fmt::Display for NoMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.full {
            None => write!(f, "the system refused a block of {} bytes", self.requested),
            Some((taken, max)) => {
                write!(f, "{taken} of {max} bytes for tensors and texts are taken, asked for {} more", self.requested)
            }
        }
    }
}

impl std::error::Error for NoMemory {}

/// The right to map more memory than is needed, to test whether it is there.
pub(crate) struct Headroom {
    reserved: MutexGuard<'static, usize>,
}

impl Headroom {
    /// Waits until no other thread has that right.
    pub(crate) fn lock() -> Headroom {
        // The first call reads a file, which allocates. That must happen before the lock is held.
        bytes_max();
        Headroom { reserved: reserved() }
    }

    /// Bytes that an allocation must leave free. `len` bytes were asked for, and the mappings grow by `more`.
    pub(crate) fn spare(&self, len: usize, more: usize) -> Result<usize, NoMemory> {
        let taken = MAPPED.load(Ordering::Relaxed).saturating_add(*self.reserved);
        if taken.saturating_add(more) > bytes_max() {
            return Err(NoMemory { requested: len, full: Some((taken, bytes_max())) });
        }
        // Miri cannot unmap a part of a mapping.
        Ok(if cfg!(miri) { 0 } else { SPARE_BYTES + *self.reserved })
    }

    /// Reserves `bytes` for an allocation of `len`, if the system has them.
    pub(crate) fn reserve(&mut self, len: usize, bytes: usize) -> Result<(), NoMemory> {
        let refused = NoMemory::refused(len);
        let all = bytes.checked_add(self.spare(len, bytes)?).ok_or(refused)?;
        if !probe(all) {
            return Err(refused);
        }
        *self.reserved += bytes;
        Ok(())
    }
}

/// Whether the system can map `len` bytes. The caller holds [`Headroom`] meanwhile.
pub(crate) fn probe(len: usize) -> bool {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory of ours.
    let ptr = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    if ptr == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: exactly the mapping just made, to which nothing points.
    unsafe { libc::munmap(ptr, len) };
    true
}

/// The bytes that are reserved. They do not change while this is held.
pub(crate) fn reserved() -> MutexGuard<'static, usize> {
    RESERVED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of all reservations.
pub(crate) fn reserved_bytes() -> usize {
    *reserved()
}

/// Waits until no thread maps more than it will keep.
pub(crate) fn wait_for_probes() {
    drop(reserved());
}

/// Counts a mapping that changed from `before` to `now` bytes.
pub(crate) fn mapped(before: usize, now: usize) {
    if now >= before {
        MAPPED.fetch_add(now - before, Ordering::Relaxed);
    } else {
        MAPPED.fetch_sub(before - now, Ordering::Relaxed);
    }
}

/// Bytes that blocks and reservations may use together.
pub(crate) fn bytes_max() -> usize {
    static BYTES_MAX: OnceLock<usize> = OnceLock::new();
    *BYTES_MAX.get_or_init(|| {
        let allowed = usize::try_from(allowed_bytes()).unwrap_or(usize::MAX);
        allowed - allowed / SYSTEM_SHARE
    })
}
