//! Which memory is returned to the system before an allocation is refused?
//!
//! It is memory that waits to be unmapped, freed large allocations that are kept, and the pool's blocks. A thread returns about as much memory as its
//! allocation needs. So the thread of a small request does not unmap all memory that other clients left. The thread of a large request may serve connections,
//! so it does not do so either: it returns at most [`RECLAIMED_BYTES_MAX`]. If that is not enough, the allocation is refused. The client may try again when the
//! thread `nerite-unmap` has unmapped the rest. An allocation by the program's allocator cannot be refused, so its thread returns all memory that it needs
//! ([`reclaim_bytes`]).

use crate::block;
use crate::headroom::{NoMemory, SPARE_BYTES, reserved_bytes};
use crate::large;
use crate::unmapping::{UNMAPPER, unmap_here};

/// The most bytes that a thread returns for one allocation. Unmapping them takes about 20 ms, on a busy machine up to 50.
const RECLAIMED_BYTES_MAX: usize = 256 << 20;

/// Runs `take`, an allocation of `bytes` bytes. While it fails, returns memory to the system and runs it again.
pub(crate) fn or_reclaim<T>(bytes: usize, mut take: impl FnMut() -> Result<T, NoMemory>) -> Result<T, NoMemory> {
    let mut left = reclaimed_bytes_max(bytes, reserved_bytes());
    loop {
        let refused = match take() {
            Err(refused) => refused,
            taken => return taken,
        };
        let freed = if left > 0 && can_help(refused, bytes, reclaimable_bytes()) {
            // The headroom does not count freed large allocations, so returning them helps only if the system refused.
            reclaim(refused.full.is_none())
        } else {
            0
        };
        if freed == 0 {
            return Err(refused);
        }
        left = left.saturating_sub(freed);
    }
}

/// The most bytes that are returned for an allocation of `bytes` bytes, while `reserved` are reserved. The allocation may map the spare bytes and what is
/// reserved as well, to test whether they are there.
fn reclaimed_bytes_max(bytes: usize, reserved: usize) -> usize {
    bytes.saturating_add(SPARE_BYTES).saturating_add(reserved).min(RECLAIMED_BYTES_MAX)
}

/// Returns at least `bytes` bytes to the system, or all reclaimable bytes if they are fewer. It does not allocate, so the allocator can call it.
pub(crate) fn reclaim_bytes(bytes: usize) {
    let mut left = bytes;
    while left > 0 {
        match reclaim(true) {
            0 => return,
            freed => left = left.saturating_sub(freed),
        }
    }
}

/// Returns some memory to the system: a piece of the waiting memory, or a kept mapping, or memory that another thread is unmapping now. Returns its bytes, or
/// 0 if there was none. `with_large` says whether kept large allocations are returned too. It does not allocate.
fn reclaim(with_large: bool) -> usize {
    let sources: [fn(bool) -> usize; 4] = [
        |_| UNMAPPER.help(),
        |with_large| if with_large { large::pop().map_or(0, unmap_here) } else { 0 },
        |_| block::pop().map_or(0, unmap_here),
        |_| UNMAPPER.wait_for_piece(),
    ];
    sources.iter().map(|source| source(with_large)).find(|bytes| *bytes > 0).unwrap_or(0)
}

/// Whether an allocation of `bytes` that was refused could succeed once `reclaimable_bytes` were returned.
fn can_help(refused: NoMemory, bytes: usize, reclaimable_bytes: usize) -> bool {
    refused.full.is_none_or(|(taken, max)| taken.saturating_sub(reclaimable_bytes).saturating_add(bytes) <= max)
}

/// Bytes that the headroom counts and that can be returned, or are being returned.
pub(crate) fn reclaimable_bytes() -> usize {
    block::pooled_bytes().saturating_add(UNMAPPER.waiting_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks whether memory is returned for a refused allocation of `bytes` bytes, if 30 bytes could be returned. `full` has the bytes that are taken, and
    /// their limit.
    #[track_caller]
    fn check(full: Option<(usize, usize)>, bytes: usize, expected: bool) {
        assert_eq!(can_help(NoMemory { requested: bytes, full }, bytes, 30), expected);
    }

    #[test]
    fn a_thread_returns_what_its_allocation_needs_and_no_more_than_it_may() {
        assert_eq!(reclaimed_bytes_max(4096, 8192), 4096 + 8192 + SPARE_BYTES);
        assert_eq!(reclaimed_bytes_max(RECLAIMED_BYTES_MAX, 0), RECLAIMED_BYTES_MAX);
        assert_eq!(reclaimed_bytes_max(usize::MAX, usize::MAX), RECLAIMED_BYTES_MAX);
    }

    #[test]
    fn nothing_is_returned_for_an_allocation_that_fails_all_the_same() {
        check(Some((90, 100)), 11, true);
        check(Some((90, 100)), 40, true);
        check(Some((90, 100)), 41, false);
        check(Some((20, 100)), 100, true);
        check(Some((20, 100)), usize::MAX, false);
        check(None, usize::MAX, true);
    }
}
