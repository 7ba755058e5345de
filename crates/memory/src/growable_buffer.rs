//! How are bytes collected if their number is not known in advance?
//!
//! The first bytes are stored in a vector. When there are more, they are moved to a [`Slot`], which grows without copying and returns an error when there is no
//! memory.

use std::io;

use crate::block::POOLED_BYTES_MIN;
use crate::{Buffer, NoMemory, Reason, Slot};

/// A buffer of bytes that grows at its end. Growing fails if there is no memory.
#[derive(Debug)]
pub struct GrowableBuffer {
    few: Vec<u8>,
    many: Option<Slot>,
    len: usize,
}

impl GrowableBuffer {
    /// An empty buffer with room for `len` bytes.
    pub fn with_capacity(len: usize) -> Result<GrowableBuffer, NoMemory> {
        let many = if len < POOLED_BYTES_MIN { None } else { Some(Slot::try_heap(len)?) };
        let few = Vec::with_capacity(if many.is_some() { 0 } else { len });
        Ok(GrowableBuffer { few, many, len: 0 })
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds `bytes`. On failure nothing is added.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), NoMemory> {
        let len = self.len.checked_add(bytes.len()).ok_or(NoMemory::refused(usize::MAX))?;
        if self.many.is_none() && len < POOLED_BYTES_MIN {
            self.few.extend_from_slice(bytes);
        } else {
            let slot = self.large(len)?;
            slot[len - bytes.len()..len].copy_from_slice(bytes);
        }
        self.len = len;
        Ok(())
    }

    /// Replaces the bytes at `at` by `bytes`.
    ///
    /// # Panics
    /// If the buffer ends before `at + bytes.len()`.
    pub fn replace(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len, "{} bytes at {at} of {}", bytes.len(), self.len);
        let all = match &mut self.many {
            Some(slot) => slot.private_bytes_mut().expect("a heap slot is this process's own"),
            None => &mut self.few[..],
        };
        all[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The collected bytes.
    pub fn finish(self) -> Buffer {
        let Some(mut slot) = self.many else { return Buffer::from(self.few) };
        slot.truncate(self.len);
        slot.filled().into_buffer()
    }

    /// The slot, with room for at least `len` bytes. If the bytes are in the vector, they are moved to it.
    fn large(&mut self, len: usize) -> Result<&mut [u8], NoMemory> {
        if let Some(slot) = &mut self.many {
            if slot.len() < len {
                let larger = len.max(slot.len().saturating_mul(2));
                slot.try_grow(larger, self.len, Reason::Convert)?;
            }
        } else {
            let mut slot = Slot::try_heap(len.max(2 * POOLED_BYTES_MIN))?;
            let to = slot.private_bytes_mut().expect("a heap slot is this process's own");
            to[..self.len].copy_from_slice(&self.few);
            (self.few, self.many) = (Vec::new(), Some(slot));
        }
        let slot = self.many.as_mut().and_then(Slot::private_bytes_mut);
        Ok(slot.expect("it was there or has just been made, and is this process's own"))
    }
}

impl io::Write for GrowableBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(bytes).map_err(|refused| io::Error::new(io::ErrorKind::OutOfMemory, refused))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The shortage of memory in an error of writing to a [`GrowableBuffer`]. `None` if the error has another cause.
pub fn shortage(error: &io::Error) -> Option<NoMemory> {
    error.get_ref().and_then(|cause| cause.downcast_ref::<NoMemory>()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(first: usize, pieces: &[usize]) {
        let mut buffer = GrowableBuffer::with_capacity(first).expect("some MiB");
        let mut all = Vec::new();
        for (n, len) in pieces.iter().enumerate() {
            let piece = vec![n as u8 + 1; *len];
            buffer.push(&piece).expect("some MiB");
            all.extend(piece);
            assert_eq!((buffer.len(), buffer.is_empty()), (all.len(), all.is_empty()));
        }
        if all.len() > 3 {
            buffer.replace(1, &[9, 8]);
            all[1..3].copy_from_slice(&[9, 8]);
        }
        assert!(buffer.finish().private_bytes() == Some(&all[..]), "{first} {pieces:?}");
    }

    #[test]
    fn bytes_come_back_in_order_however_many_there_are() {
        check(0, &[]);
        check(10, &[0, 3, 1]);
        check(0, &[POOLED_BYTES_MIN - 1, 1, 7]);
        check(0, &[100, 3 << 20, 5, 2 << 20]);
        check(1 << 20, &[100, 3 << 20, 5]);
        check(1 << 20, &[100]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri ends where the system would refuse")]
    fn a_shortage_is_found_behind_an_error_of_writing() {
        assert!(GrowableBuffer::with_capacity(isize::MAX as usize).is_err());
        let refused = NoMemory::refused(7);
        assert_eq!(shortage(&io::Error::new(io::ErrorKind::OutOfMemory, refused)), Some(refused));
        assert_eq!(shortage(&io::Error::other("something else")), None);
    }
}
