//! How does work reserve the memory that it will need?
//!
//! Reserved memory is counted as if it were taken: see [`crate::headroom`].

use crate::block::or_reclaim;
use crate::headroom::{Headroom, NoMemory, SPARE_BYTES, probe, reserved};
use crate::page::PAGE_BYTES_MAX;

/// Memory is short when less than one part in this many of [`SPARE_BYTES`] is free.
const SHORT_SHARE: usize = 4;

/// Reserved memory, for work whose allocations would end the process if they failed. Hold it until the work is done. Memory that the work has allocated
/// meanwhile counts twice. So the sum is too high rather than too low.
#[derive(Debug, Default)]
pub struct MemoryReservation {
    bytes: usize,
}

impl MemoryReservation {
    /// An empty reservation, for work that needs little.
    pub fn none() -> MemoryReservation {
        MemoryReservation::default()
    }

    /// Reserves `len` bytes.
    pub fn take(len: usize) -> Result<MemoryReservation, NoMemory> {
        let mut reservation = MemoryReservation::none();
        reservation.add(len).map(|()| reservation)
    }

    /// Reserves `len` bytes more. On failure the reservation is unchanged.
    pub fn add(&mut self, len: usize) -> Result<(), NoMemory> {
        let bytes = len.checked_next_multiple_of(PAGE_BYTES_MAX).ok_or(NoMemory::refused(len))?.max(PAGE_BYTES_MAX);
        or_reclaim(bytes, || Headroom::lock().reserve(len, bytes))?;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            *reserved() -= self.bytes;
        }
    }
}

/// Whether the spare memory is nearly used up. Call this before an allocation that cannot be refused.
pub fn is_short() -> bool {
    or_reclaim(0, || {
        let _headroom = Headroom::lock();
        probe(SPARE_BYTES / SHORT_SHARE).then_some(()).ok_or(NoMemory::refused(SPARE_BYTES / SHORT_SHARE))
    })
    .is_err()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::Block;
    use crate::headroom::{MAPPED, bytes_max};

    #[test]
    #[cfg_attr(miri, ignore = "Miri ends where the system would refuse")]
    fn reserved_memory_is_not_given_to_others() {
        let most = bytes_max() / 2;
        let (mut reservation, taken) = (MemoryReservation::none(), || MAPPED.load(Ordering::Relaxed) + *reserved());
        if reservation.add(most).is_err() {
            // This system does not let a process reserve more memory than there is.
            return;
        }
        let full = |refused: NoMemory| refused.full.map(|(taken, max)| (taken >= most, max)).unwrap_or_default();
        let requested = bytes_max() - most + 1;
        assert_eq!(MemoryReservation::take(requested).map_err(full).err(), Some((true, bytes_max())));
        assert_eq!(Block::try_new(requested).map_err(full).err(), Some((true, bytes_max())));
        let mut block = Block::try_new(1 << 20).expect("a MiB");
        assert!(block.try_grow(requested).is_err());
        assert!(reservation.add(requested).is_err());
        assert!(taken() >= most);
        drop(reservation);
        MemoryReservation::take(requested.min(most)).expect("what was reserved before");
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
        assert!(MemoryReservation::take(1 << 20).is_ok_and(|mut reservation| reservation.add(1 << 20).is_ok()));
    }
}
