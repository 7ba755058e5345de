//! What may a newcomer still ask the system for?
//!
//! ```text
//!   what the process may have
//!   ├── taken ──┤├── promised ──┤├── what a newcomer may ask for ──┤├── spare ──┤
//! ```
//! To look whether there is room is not enough: two who look at the same moment see the same room. So what was promised and is
//! not there yet is counted ([`crate::MemoryReservation`]), and whoever comes next leaves it alone, and [`SPARE_BYTES`] beside it
//! for the many small things whose allocation cannot fail without ending the process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::allowed::allowed_bytes;
use crate::page::PAGE;

/// What anything whose size a client chose leaves to everybody else, of a process whose memory has a limit.
pub const SPARE_BYTES: usize = 64 << 20;
/// Of what the process may have, blocks and promises may come to all but this part.
const KEPT_SHARE: usize = 8;

const _: () = assert!(SPARE_BYTES.is_multiple_of(PAGE));

/// Bytes promised to the reservations that there are. Held while somebody asks the system for more than it will keep: meanwhile others
/// would be refused what is there.
static PROMISED: Mutex<usize> = Mutex::new(0);
/// Bytes of the mappings that there are, the pool's among them.
pub(crate) static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// There is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory {
    /// Bytes asked for.
    pub asked: usize,
    /// Bytes that were taken or promised and bytes that may be, where that was the reason; else the system refused.
    pub full: Option<(usize, usize)>,
}

impl NoMemory {
    /// The system refused.
    pub(crate) fn refused(asked: usize) -> NoMemory {
        NoMemory { asked, full: None }
    }
}

impl std::fmt::Display for NoMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.full {
            None => write!(f, "the system refused a block of {} bytes", self.asked),
            Some((taken, max)) => {
                write!(f, "{taken} of {max} bytes for tensors and texts are taken, asked for {} more", self.asked)
            }
        }
    }
}

impl std::error::Error for NoMemory {}

/// The right to ask the system for more than is wanted.
pub(crate) struct Asking {
    promised: MutexGuard<'static, usize>,
}

impl Asking {
    /// Waits for others who ask.
    pub(crate) fn now() -> Asking {
        // Reads a file the first time, which allocates; nothing may do that while somebody asks.
        bytes_max();
        Asking { promised: promised() }
    }

    /// Bytes that a newcomer, who asks for `len` and will have `more` than before, leaves free.
    pub(crate) fn spare(&self, len: usize, more: usize) -> Result<usize, NoMemory> {
        let taken = MAPPED.load(Ordering::Relaxed).saturating_add(*self.promised);
        if taken.saturating_add(more) > bytes_max() {
            return Err(NoMemory { asked: len, full: Some((taken, bytes_max())) });
        }
        // Miri knows only whole mappings.
        Ok(if cfg!(miri) { 0 } else { SPARE_BYTES + *self.promised })
    }

    /// Counts `bytes` for the `len` asked for as promised, if the system would give them.
    pub(crate) fn promise(&mut self, len: usize, bytes: usize) -> Result<(), NoMemory> {
        let refused = NoMemory::refused(len);
        let all = bytes.checked_add(self.spare(len, bytes)?).ok_or(refused)?;
        if !probe(all) {
            return Err(refused);
        }
        *self.promised += bytes;
        Ok(())
    }
}

/// Whether the system would give `len` bytes. Meanwhile nobody else may ask: see [`Asking`].
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

/// The bytes promised now. Nobody else changes them while this is held.
pub(crate) fn promised() -> MutexGuard<'static, usize> {
    PROMISED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until nobody asks the system for more than it will keep.
pub(crate) fn wait_for_probes() {
    drop(promised());
}

/// A mapping became `now` bytes that were `before`.
pub(crate) fn mapped(before: usize, now: usize) {
    if now >= before {
        MAPPED.fetch_add(now - before, Ordering::Relaxed);
    } else {
        MAPPED.fetch_sub(before - now, Ordering::Relaxed);
    }
}

/// Bytes that blocks and promises may come to.
pub(crate) fn bytes_max() -> usize {
    static BYTES_MAX: OnceLock<usize> = OnceLock::new();
    *BYTES_MAX.get_or_init(|| {
        let allowed = usize::try_from(allowed_bytes()).unwrap_or(usize::MAX);
        allowed - allowed / KEPT_SHARE
    })
}
