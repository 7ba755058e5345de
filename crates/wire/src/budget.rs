//! How is the memory that decoding a message takes kept within the host's memory?
//!
//! A message can need a hundred bytes of memory for each element of two bytes. Bytes that are about to be allocated are summed up. Once the sum is
//! large, the memory is reserved before it is allocated.

use nerite_memory::{MemoryReservation, NoMemory};

/// Bytes that may be allocated before the next reservation.
const UNRESERVED_BYTES_MAX: usize = 1 << 20;

const _: () =
    assert!(UNRESERVED_BYTES_MAX < nerite_memory::SPARE_BYTES, "unreserved allocations must fit into the spare memory");

/// Memory reserved for decoding one message, without its tensors. Dropped when all of it has been allocated.
#[derive(Debug, Default)]
pub struct Budget {
    reservation: MemoryReservation,
    unreserved: usize,
}

impl Budget {
    /// Nothing is reserved yet.
    pub fn new() -> Budget {
        Budget::default()
    }

    /// Memory for the strings of a JSON text. Together they are at most as long as the text. Each byte that is not UTF-8 can become a replacement
    /// character of three bytes.
    pub fn of_text(text: &[u8]) -> Result<Budget, NoMemory> {
        let mut budget = Budget::new();
        if text.len() >= UNRESERVED_BYTES_MAX {
            let growth = if std::str::from_utf8(text).is_ok() { 1 } else { 3 };
            budget.need(text.len().saturating_mul(growth))?;
        }
        Ok(budget)
    }

    /// Counts `bytes` that are about to be allocated, and reserves memory if enough have accumulated.
    pub fn need(&mut self, bytes: usize) -> Result<(), NoMemory> {
        let unreserved = self.unreserved.saturating_add(bytes);
        if unreserved < UNRESERVED_BYTES_MAX {
            self.unreserved = unreserved;
            return Ok(());
        }
        self.reservation.add(unreserved)?;
        self.unreserved = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_amounts_are_reserved_and_small_ones_once_they_accumulate() {
        let mut budget = Budget::new();
        for _ in 0..3 {
            assert_eq!(budget.need(UNRESERVED_BYTES_MAX / 2), Ok(()));
        }
        assert_eq!(budget.unreserved, UNRESERVED_BYTES_MAX / 2);
        assert_eq!(budget.need(isize::MAX as usize).map_err(|refused| refused.requested > 1 << 60), Err(true));
        assert_eq!(budget.unreserved, UNRESERVED_BYTES_MAX / 2);
        assert!(Budget::of_text(&vec![b' '; UNRESERVED_BYTES_MAX]).is_ok_and(|budget| budget.unreserved == 0));
        assert!(Budget::of_text(b"{}").is_ok_and(|budget| budget.unreserved == 0));
    }
}
