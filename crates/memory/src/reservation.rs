//! How does work that is about to need memory make sure of it?
//!
//! A promise is counted as if the memory were taken: see [`crate::asking`].

use crate::asking::{Asking, NoMemory, SPARE_BYTES, probe, promised};
use crate::block::or_without_pool;
use crate::page::PAGE;

/// Of what is spare, memory is short when less than this part is there.
const SHORT_SHARE: usize = 4;

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

/// Whether a part of what is spare is gone already: to be asked before something takes memory that it cannot be refused.
pub fn is_short() -> bool {
    or_without_pool(|| {
        let _asking = Asking::now();
        probe(SPARE_BYTES / SHORT_SHARE).then_some(()).ok_or(NoMemory::refused(SPARE_BYTES / SHORT_SHARE))
    })
    .is_err()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::Block;
    use crate::asking::{MAPPED, bytes_max};

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
