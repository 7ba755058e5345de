//! How does work that is about to need memory make sure of it?
//!
//! ```text
//!   what the process may have
//!   ├── taken ──┤├── promised ──┤├── what a newcomer may ask for ──┤├── spare ──┤
//! ```
//! To look whether there is room is not enough: two who look at the same moment see the same room. So what was promised and is
//! not there yet is counted ([`MemoryReservation`]), and whoever comes next leaves it alone, and [`SPARE_BYTES`] beside it for the many
//! small things whose allocation cannot fail without ending the process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::allowed::allowed_bytes;
use crate::block::{PAGE, empty_pool};

/// What anything whose size a client chose leaves to everybody else, of a process whose memory has a limit.
pub const SPARE_BYTES: usize = 64 << 20;
/// Of what the process may have, blocks and promises may come to all but this part.
const KEPT_SHARE: usize = 8;
/// Of what is spare, memory is short when less than this part is there.
const SHORT_SHARE: usize = 4;

const _: () = assert!(SPARE_BYTES.is_multiple_of(PAGE));

/// Bytes promised to the reservations that there are. Held while somebody asks the system for more than it will keep: meanwhile others
/// would be refused what is there.
static PROMISED: Mutex<usize> = Mutex::new(0);
/// Bytes of the mappings that there are, the pool's among them.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

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

/// A promise of memory to work that allocates by means which cannot fail without ending the process. Held until the work is done:
/// what it has allocated by then counts twice, which errs on the safe side.
#[derive(Debug, Default)]
pub struct MemoryReservation {
    bytes: usize,
}

impl MemoryReservation {
    /// Nothing promised, for work too small to ask.
    pub fn none() -> MemoryReservation {
        MemoryReservation::default()
    }

    /// Memory for `len` bytes.
    pub fn take(len: usize) -> Result<MemoryReservation, NoMemory> {
        let mut room = MemoryReservation::none();
        room.add(len).map(|()| room)
    }

    /// Memory for `len` more. On failure it is what it was.
    pub fn add(&mut self, len: usize) -> Result<(), NoMemory> {
        let bytes = len.checked_next_multiple_of(PAGE).ok_or(NoMemory::refused(len))?.max(PAGE);
        or_without_pool(|| Asking::now().promise(len, bytes))?;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            *promised() -= self.bytes;
        }
    }
}

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
    fn promise(&mut self, len: usize, bytes: usize) -> Result<(), NoMemory> {
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
fn probe(len: usize) -> bool {
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

fn promised() -> MutexGuard<'static, usize> {
    PROMISED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a part of what is spare is gone already: to be asked before something takes memory that it cannot be refused.
pub fn is_short() -> bool {
    or_without_pool(|| {
        let _asking = Asking::now();
        probe(SPARE_BYTES / SHORT_SHARE).then_some(()).ok_or(NoMemory::refused(SPARE_BYTES / SHORT_SHARE))
    })
    .is_err()
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

/// What `take` gets, if need be after the pool has given back what it keeps for nobody.
pub(crate) fn or_without_pool<T>(mut take: impl FnMut() -> Result<T, NoMemory>) -> Result<T, NoMemory> {
    take().or_else(|refused| if empty_pool() > 0 { take() } else { Err(refused) })
}

/// Bytes that blocks and promises may come to.
fn bytes_max() -> usize {
    static BYTES_MAX: OnceLock<usize> = OnceLock::new();
    *BYTES_MAX.get_or_init(|| {
        let allowed = usize::try_from(allowed_bytes()).unwrap_or(usize::MAX);
        allowed - allowed / KEPT_SHARE
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Block;

    #[test]
    #[cfg_attr(miri, ignore = "Miri ends where the system would refuse")]
    fn what_was_promised_is_nobody_elses() {
        let most = bytes_max() / 2;
        let (mut room, taken) = (MemoryReservation::none(), || MAPPED.load(Ordering::Relaxed) + *promised());
        if room.add(most).is_err() {
            // A system that does not let processes ask for more than it has.
            return;
        }
        let full = |refused: NoMemory| refused.full.map(|(taken, max)| (taken >= most, max)).unwrap_or_default();
        let asked = bytes_max() - most + 1;
        assert_eq!(MemoryReservation::take(asked).map_err(full).err(), Some((true, bytes_max())));
        assert_eq!(Block::try_new(asked).map_err(full).err(), Some((true, bytes_max())));
        let mut block = Block::try_new(1 << 20).expect("a MiB");
        assert!(block.try_grow(asked).is_err());
        assert!(room.add(asked).is_err());
        assert!(taken() >= most);
        drop(room);
        MemoryReservation::take(asked.min(most)).expect("what was promised before");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri ends where the system would refuse")]
    fn a_refusal_says_how_much_and_why() {
        let texts =
            [usize::MAX, isize::MAX as usize].map(|len| MemoryReservation::take(len).map_err(|e| e.to_string()).err());
        assert_eq!(texts[0].as_deref(), Some("the system refused a block of 18446744073709551615 bytes"));
        assert!(texts[1].as_ref().is_some_and(|text| text.ends_with("are taken, asked for 9223372036854775807 more")));
    }

    #[test]
    fn little_and_nothing_are_promised() {
        assert!(!is_short());
        assert!(MemoryReservation::take(0).is_ok());
        assert!(MemoryReservation::take(1 << 20).is_ok_and(|mut room| room.add(1 << 20).is_ok()));
    }
}
