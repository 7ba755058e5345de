//! How are bytes copied to memory that only this process can write, or to an aligned address?

use bytes::Bytes;

use crate::{Buffer, NoMemory, Reason, Slot};

impl Buffer {
    /// A copy of the bytes in a fresh block of this process, aligned to 64 bytes.
    ///
    /// # Panics
    /// If the bytes are on a device. Such a copy can fail, so use [`Slot::fill_from`] for it.
    pub fn to_private(&self, reason: Reason) -> Buffer {
        assert!(self.place().is_host(), "bytes of {:?} where only this host's are met", self.place());
        let mut slot = Slot::heap(self.len());
        slot.fill_from(0, self, reason).expect("a slot of the buffer's own length");
        slot.filled().into_buffer()
    }

    /// As [`Buffer::to_private`], for a size that a client chose.
    ///
    /// # Panics
    /// As [`Buffer::to_private`].
    pub fn try_private(&self, reason: Reason) -> Result<Buffer, NoMemory> {
        assert!(self.place().is_host(), "bytes of {:?} where only this host's are met", self.place());
        let mut slot = Slot::try_heap(self.len())?;
        slot.fill_from(0, self, reason).expect("a slot of the buffer's own length");
        Ok(slot.filled().into_buffer())
    }

    /// These bytes at an address that is a multiple of `align`: unchanged if they are aligned already, else a counted copy.
    pub fn aligned(&self, align: usize) -> Buffer {
        if self.is_aligned(align) { self.clone() } else { self.to_private(Reason::Unaligned) }
    }

    /// As [`Buffer::aligned`], for a size that a client chose.
    pub fn try_aligned(&self, align: usize) -> Result<Buffer, NoMemory> {
        if self.is_aligned(align) { Ok(self.clone()) } else { self.try_private(Reason::Unaligned) }
    }

    /// The bytes in a form that a socket can send. They are copied, and counted, only if another process can write them.
    pub fn into_bytes(self) -> Bytes {
        self.try_into_bytes().expect("memory for what this process chose to send")
    }

    /// As [`Buffer::into_bytes`], for a size that a client chose.
    pub fn try_into_bytes(self) -> Result<Bytes, NoMemory> {
        if self.is_empty() {
            return Ok(Bytes::new());
        }
        let private = if self.private_bytes().is_some() { self } else { self.try_private(Reason::InlineResponse)? };
        Ok(Bytes::from_owner(PrivateBuffer(private)))
    }
}

struct PrivateBuffer(Buffer);

impl AsRef<[u8]> for PrivateBuffer {
    fn as_ref(&self) -> &[u8] {
        self.0.private_bytes().expect("only private buffers are wrapped, in `into_bytes`")
    }
}
