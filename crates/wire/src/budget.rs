//! How is what is made of a message kept within the memory there is?
//!
//! A message of two bytes an element can mean a hundred bytes of memory for each. What is about to be made is added up, and when
//! it comes to much it is asked for, before it is made.

use nerite_memory::{MemoryReservation, NoMemory};

/// So much is made between two questions.
const UNASKED_BYTES_MAX: usize = 1 << 20;

const _: () =
    assert!(UNASKED_BYTES_MAX < nerite_memory::SPARE_BYTES, "what was not asked for must fit into what is spare");

/// The memory that one message takes beside its tensors. Dropped when all of that is made.
#[derive(Debug, Default)]
pub struct Budget {
    room: MemoryReservation,
    unasked: usize,
}

impl Budget {
    /// Nothing yet.
    pub fn new() -> Budget {
        Budget::default()
    }

    /// For the strings of a JSON text: together they are not longer than it is, unless bytes that are no UTF-8 each become a
    /// replacement of three.
    pub fn of_text(text: &[u8]) -> Result<Budget, NoMemory> {
        let mut budget = Budget::new();
        if text.len() >= UNASKED_BYTES_MAX {
            let growth = if std::str::from_utf8(text).is_ok() { 1 } else { 3 };
            budget.need(text.len().saturating_mul(growth))?;
        }
        Ok(budget)
    }

    /// `bytes` more are about to be allocated.
    pub fn need(&mut self, bytes: usize) -> Result<(), NoMemory> {
        let unasked = self.unasked.saturating_add(bytes);
        if unasked < UNASKED_BYTES_MAX {
            self.unasked = unasked;
            return Ok(());
        }
        self.room.add(unasked)?;
        self.unasked = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn much_is_asked_for_and_little_only_when_it_adds_up() {
        let mut budget = Budget::new();
        for _ in 0..3 {
            assert_eq!(budget.need(UNASKED_BYTES_MAX / 2), Ok(()));
        }
        assert_eq!(budget.unasked, UNASKED_BYTES_MAX / 2);
        assert_eq!(budget.need(isize::MAX as usize).map_err(|refused| refused.asked > 1 << 60), Err(true));
        assert_eq!(budget.unasked, UNASKED_BYTES_MAX / 2);
        assert!(Budget::of_text(&vec![b' '; UNASKED_BYTES_MAX]).is_ok_and(|budget| budget.unasked == 0));
        assert!(Budget::of_text(b"{}").is_ok_and(|budget| budget.unasked == 0));
    }
}
