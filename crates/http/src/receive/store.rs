//! Where is a body put together?

use nerite_memory::{Buffer, Extent, Reason, Slot, count_copied};

use crate::limits::{FIRST_BLOCK_BYTES_MAX, FIRST_BLOCK_BYTES_MIN, TAIL_ALIGN};

/// A block that takes a body piece by piece and grows when more comes than was known of.
#[derive(Debug)]
pub struct Store {
    slot: Slot,
    /// Bytes left free at the front, so that the byte at `tail_at` lies on a boundary.
    lead: usize,
    filled: usize,
}

impl Store {
    /// Room for a body whose binary part begins at `tail_at`. A large declared length is believed only as the bytes come.
    pub fn new(tail_at: usize, declared: Option<u64>) -> Store {
        let lead = (TAIL_ALIGN - tail_at % TAIL_ALIGN) % TAIL_ALIGN;
        let room = declared.map_or(FIRST_BLOCK_BYTES_MIN, |len| len.min(FIRST_BLOCK_BYTES_MAX as u64) as usize);
        Store { slot: Slot::heap(lead + room), lead, filled: 0 }
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Appends a piece.
    pub fn write(&mut self, piece: &[u8]) {
        let at = self.lead + self.filled;
        if self.slot.len() - at < piece.len() {
            self.grow(at + piece.len());
        }
        self.slot.write(at, piece, Reason::InlineRequest).expect("there is room, or it was just made");
        self.filled += piece.len();
    }

    /// Room to write the next bytes to; never empty. [`Store::advance`] then says how many they were.
    pub fn room(&mut self) -> &mut [u8] {
        let at = self.lead + self.filled;
        if self.slot.len() == at {
            self.grow(at + 1);
        }
        let all = self.slot.private_bytes_mut().expect("a heap slot is this process's own");
        &mut all[at..]
    }

    /// Counts bytes written to the room.
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

    /// Makes room for at least `needed` bytes, and for twice what there was.
    fn grow(&mut self, needed: usize) {
        let mut larger = Slot::heap(needed.max(self.slot.len() * 2));
        let end = self.lead + self.filled;
        let all = self.slot.private_bytes_mut().expect("a heap slot is this process's own");
        larger.write(0, &all[..end], Reason::InlineRequest).expect("the larger slot is larger");
        self.slot = larger;
    }
}
