//! What keeps bytes alive, and can they still be trusted?

use std::ptr::NonNull;

use crate::{Block, Carrier, Share};

/// Whatever owns memory that Buffers and Slots point into. Dropping the last reference releases the memory.
pub trait Keep: Send + Sync {
    /// Why these bytes can no longer be believed, if something happened to them since they were mapped: the text
    /// says what was expected and what is there. `None` for memory that only this process can touch.
    fn fault(&self) -> Option<String> {
        None
    }

    /// How another process of this host would open the memory, if it is a device's: `None` for what has no such handle.
    fn ipc(&self) -> Option<IpcSource> {
        None
    }

    /// How another process of this host maps the memory, if it can.
    fn share(&self) -> Option<&dyn Share> {
        None
    }

    /// Who can read and write the bytes, if this process cannot: needed of whatever keeps memory of a device.
    fn carrier(&self) -> Option<&dyn Carrier> {
        None
    }

    /// The block itself, where this is one and nothing else: a Slot that is its only user may let it grow.
    fn block_mut(&mut self) -> Option<&mut Block> {
        None
    }
}

impl Keep for Block {
    fn block_mut(&mut self) -> Option<&mut Block> {
        Some(self)
    }
}

impl Keep for bytes::Bytes {}
impl<T: crate::Number> Keep for Vec<T> {}

/// A handle for memory of a device, and where the memory begins that it opens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IpcSource {
    /// `cudaIpcMemHandle_t`.
    pub handle: [u8; 64],
    /// First byte, in this process.
    pub base: NonNull<u8>,
}

/// Bytes of a device as another process of this host can open them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IpcWindow {
    /// `cudaIpcMemHandle_t`.
    pub handle: [u8; 64],
    /// Offset of the bytes in what the handle opens.
    pub offset: usize,
}

impl IpcSource {
    /// The same, as seen from `ptr` in the memory it opens.
    pub(crate) fn window(self, ptr: NonNull<u8>) -> IpcWindow {
        IpcWindow { handle: self.handle, offset: ptr.addr().get() - self.base.addr().get() }
    }
}

impl std::fmt::Debug for IpcWindow {
    /// Without the handle: who knows it can open the memory.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IpcWindow(at {})", self.offset)
    }
}

/// Who may write the bytes while we look at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nobody but this process, and it does so only through Slots.
    Private,
    /// Another process, at any moment.
    Shared,
}
