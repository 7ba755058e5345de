//! How much memory may the next allocation take?
//!
//! ```text
//!   what the process may have
//!   ├── taken ──┤├── reserved ──┤├── free for the next allocation ──┤├── spare ──┤
//! ```
//! A check for free memory is not enough, because two threads that check at the same moment find the same free memory. So bytes can be reserved before they are
//! allocated ([`crate::MemoryReservation`]), and other allocations must leave them free. An allocation must also leave [`SPARE_BYTES`] free, because the
//! process ends when one of its many small allocations fails.
//!
//! Weights of loaded models are counted separately, because the operator chose the models ([`crate::run_memory`]). Requests and runs of models share the memory
//! that the weights leave. Runs may not use all of it, so that a server whose models need much memory still receives requests.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{MutexGuard, OnceLock, PoisonError};

use nerite_locks::Mutex;

use crate::allowed::allowed_bytes;
use crate::page::PAGE_BYTES_MAX;

/// Bytes that an allocation whose size a client chose must leave free, if the memory of the process has a limit.
pub const SPARE_BYTES: usize = 64 << 20;
/// Blocks and reservations may use all memory of the process except for one part in this many.
const SYSTEM_SHARE: usize = 8;
/// Requests may use one part in this many, however large the weights of models are.
const REQUEST_SHARE_MIN: usize = 8;

const _: () = assert!(SPARE_BYTES.is_multiple_of(PAGE_BYTES_MAX));

/// Bytes of all reservations. A thread also holds the lock while it maps more memory than it keeps, because allocations of other threads could fail meanwhile.
static RESERVED: Mutex<usize> = Mutex::new(0);
/// Bytes of the mappings of all blocks, including those in the pool, of the memory of models' runs, and of private memory that waits to be unmapped.
pub(crate) static MAPPED: AtomicUsize = AtomicUsize::new(0);
/// Bytes of models' weights, as far as an engine allocates them by [`crate::run_memory`].
pub(crate) static WEIGHTS: AtomicUsize = AtomicUsize::new(0);

/// There is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory {
    /// The requested bytes.
    pub requested: usize,
    /// The bytes that are taken or reserved, and their limit, if the limit was the reason. `None` if the system refused.
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

/// The use of memory whose size a client determines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To receive a request, or to send its response.
    Request,
    /// To compute a model's result.
    Run,
}

impl Purpose {
    /// Bytes that requests and runs may have together, if the next allocation is for this purpose.
    pub(crate) fn bytes_max(self) -> usize {
        self.of(bytes_max(), WEIGHTS.load(Ordering::Relaxed))
    }

    /// As [`Purpose::bytes_max`], if the process may have `bytes_max` bytes, weights included.
    fn of(self, bytes_max: usize, weights: usize) -> usize {
        let requests = bytes_max.saturating_sub(weights).max(bytes_max / REQUEST_SHARE_MIN);
        match self {
            Purpose::Request => requests,
            Purpose::Run => requests - requests / 4,
        }
    }
}

/// The right to map more memory than is needed, in order to test whether the system has it.
pub(crate) struct Headroom {
    reserved: MutexGuard<'static, usize>,
}

impl Headroom {
    /// Waits until no other thread has the right.
    pub(crate) fn lock() -> Headroom {
        // The first call reads a file, which allocates. That must happen before the lock is held.
        bytes_max();
        Headroom { reserved: reserved() }
    }

    /// Bytes that an allocation for this purpose must leave free. `len` bytes were requested, and the mappings grow by `more`.
    pub(crate) fn spare(&self, purpose: Purpose, len: usize, more: usize) -> Result<usize, NoMemory> {
        let (taken, bytes_max) = (MAPPED.load(Ordering::Relaxed).saturating_add(*self.reserved), purpose.bytes_max());
        if taken.saturating_add(more) > bytes_max {
            return Err(NoMemory { requested: len, full: Some((taken, bytes_max)) });
        }
        // Miri cannot unmap a part of a mapping.
        Ok(if cfg!(miri) { 0 } else { SPARE_BYTES + *self.reserved })
    }

    /// Reserves `bytes` for an allocation of `len`, if the system has them.
    pub(crate) fn reserve(&mut self, len: usize, bytes: usize) -> Result<(), NoMemory> {
        let refused = NoMemory::refused(len);
        let all = bytes.checked_add(self.spare(Purpose::Request, len, bytes)?).ok_or(refused)?;
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
    // SAFETY: exactly the mapping that was just made. No pointer to it exists.
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

/// Waits until no thread maps more memory than it keeps.
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

/// Bytes that blocks, reservations, runs and weights may use together.
pub(crate) fn bytes_max() -> usize {
    static BYTES_MAX: OnceLock<usize> = OnceLock::new();
    *BYTES_MAX.get_or_init(|| {
        let allowed = usize::try_from(allowed_bytes()).unwrap_or(usize::MAX);
        allowed - allowed / SYSTEM_SHARE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_leave_less_to_requests_and_runs_but_never_nothing() {
        let check = |weights, requests, runs| {
            assert_eq!([Purpose::Request, Purpose::Run].map(|purpose| purpose.of(800, weights)), [requests, runs]);
        };
        check(0, 800, 600);
        check(400, 400, 300);
        check(750, 100, 75);
        check(usize::MAX, 100, 75);
    }
}
