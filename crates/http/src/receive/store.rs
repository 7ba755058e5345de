//! How is a body collected in one block?

use nerite_memory::{Buffer, Extent, NoMemory, Reason, Slot, count_copied};
use nerite_request::Status;

use crate::limits::{FIRST_BLOCK_BYTES_MAX, FIRST_BLOCK_BYTES_MIN, TAIL_ALIGN};

/// A block that collects a body piece by piece. It grows as the bytes arrive.
#[derive(Debug)]
pub struct Store {
    slot: Slot,
    /// Unused bytes at the front, so that the byte at `tail_at` is aligned.
    lead: usize,
    filled: usize,
    declared: Option<usize>,
}

impl Store {
    /// Memory for a body whose binary part begins at `tail_at`. For a large declared length, memory is allocated as the bytes arrive.
    pub fn new(tail_at: usize, declared: Option<u64>) -> Result<Store, Status> {
        let lead = (TAIL_ALIGN - tail_at % TAIL_ALIGN) % TAIL_ALIGN;
        let declared = declared.map(|len| usize::try_from(len).unwrap_or(usize::MAX));
        let whole = declared.unwrap_or(FIRST_BLOCK_BYTES_MIN);
        let slot = Slot::try_announced(lead.saturating_add(whole), lead + FIRST_BLOCK_BYTES_MAX);
        let slot = slot.map_err(|refused| refusal(whole, refused))?;
        Ok(Store { slot, lead, filled: 0, declared })
    }

    /// Appends a piece.
    pub fn write(&mut self, piece: &[u8]) -> Result<(), Status> {
        let at = self.lead + self.filled;
        if self.slot.len() - at < piece.len() {
            self.grow(at + piece.len())?;
        }
        self.slot.write(at, piece, Reason::InlineRequest).expect("there is room, or it was just made");
        self.filled += piece.len();
        Ok(())
    }

    /// Memory for the next bytes. Never empty. Call [`Store::advance`] with the number of bytes written.
    pub fn room(&mut self) -> Result<&mut [u8], Status> {
        let at = self.lead + self.filled;
        if self.slot.len() == at {
            self.grow(at + 1)?;
        }
        let all = self.slot.private_bytes_mut().expect("a heap slot is this process's own");
        Ok(&mut all[at..])
    }

    /// Counts bytes that were written to the memory from [`Store::room`].
    pub fn advance(&mut self, written: usize) {
        count_copied(Reason::InlineRequest, written);
        self.filled += written;
    }

    /// The body.
    pub fn finish(mut self) -> Buffer {
        let end = self.lead + self.filled;
        self.slot.truncate(end);
        let body = Extent::new(self.lead, self.filled, end).expect("the lead and what follows it are the block");
        self.slot.filled().into_buffer().slice(body)
    }

    /// Makes room for at least `needed` bytes. It doubles the block, but not beyond what the client declared.
    fn grow(&mut self, needed: usize) -> Result<(), Status> {
        let whole = self.declared.map_or(usize::MAX, |len| len.saturating_add(self.lead));
        let len = needed.max(self.slot.len().saturating_mul(2).min(whole));
        let grown = self.slot.try_grow(len, self.lead + self.filled, Reason::InlineRequest);
        grown.map_err(|refused| refusal(self.declared.unwrap_or(needed - self.lead), refused))
    }
}

fn refusal(len: usize, refused: NoMemory) -> Status {
    Status::no_memory(format_args!("a body of {len} bytes"), refused)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Writes `pieces` pieces of 1 MiB of a body with this declared length. Expects that the block then has `block_mib` MiB.
    #[track_caller]
    fn check(declared: Option<u64>, pieces: usize, block_mib: usize) {
        let mut store = Store::new(0, declared).unwrap();
        for n in 0..pieces {
            store.write(&vec![n as u8; 1 << 20]).unwrap();
        }
        assert_eq!((store.filled >> 20, store.slot.len() >> 20), (pieces, block_mib));
        let body = store.finish();
        let body = body.private_bytes().unwrap();
        assert!((0..pieces).all(|n| body[n << 20] == n as u8 && body[((n + 1) << 20) - 1] == n as u8));
    }

    #[test]
    fn a_declared_length_is_believed_as_the_bytes_come() {
        check(Some(2_000_000_000), 1, 2);
        check(Some(2_000_000_000), 2, 2);
        check(Some(2_000_000_000), 3, 4);
        check(Some(2_000_000_000), 65, 128);
        check(Some(70 << 20), 65, 70);
        check(Some(70 << 20), 70, 70);
        check(Some(3 << 20), 3, 3);
        check(None, 3, 4);
    }

    #[test]
    fn a_body_without_memory_for_it_is_refused_with_the_numbers() {
        let mut store = Store::new(0, None).unwrap();
        let refused = store.grow(1 << 60).unwrap_err();
        assert_eq!(refused.code, nerite_request::Code::Unavailable);
        let text = refused.message;
        assert!(text.starts_with("the server has no memory for a body of 1152921504606846976 bytes: "), "{text}");
        assert!(
            text.contains(" bytes for tensors and texts are taken, asked for 1152921504606846976 more; try"),
            "{text}"
        );
    }
}
