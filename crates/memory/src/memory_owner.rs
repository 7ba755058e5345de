//! What keeps bytes alive, and can they still be trusted?

use std::ptr::NonNull;

use crate::{Block, DeviceCopier, RewritableBlock, Share};

/// The owner of memory that Buffers and Slots point into. Dropping the last reference releases the memory.
pub trait MemoryOwner: Send + Sync {
    /// Why these bytes can no longer be trusted, if they were lost after they had been mapped. The text says what was expected and what was found. Always
    /// `None` for memory that only this process can access.
    fn fault(&self) -> Option<String> {
        None
    }

    /// How another process of this host can open device memory. `None` for memory without an IPC handle.
    fn ipc(&self) -> Option<IpcSource> {
        None
    }

    /// How another process of this host can map the memory, if it can.
    fn share(&self) -> Option<&dyn Share> {
        None
    }

    /// The copier that copies the bytes if this process cannot access them. Owners of device memory must provide it.
    fn copier(&self) -> Option<&dyn DeviceCopier> {
        None
    }

    /// How many bytes are held until the last reference is dropped, if that is known.
    fn held_bytes(&self) -> Option<usize> {
        None
    }

    /// The block, if this owner is a [`Block`]. A Slot that is its only user may enlarge it.
    fn block_mut(&mut self) -> Option<&mut Block> {
        None
    }

    /// The block, if this owner is a [`RewritableBlock`].
    fn rewritable(&self) -> Option<&RewritableBlock> {
        None
    }
}

impl MemoryOwner for RewritableBlock {
    fn held_bytes(&self) -> Option<usize> {
        Some(self.capacity())
    }

    fn rewritable(&self) -> Option<&RewritableBlock> {
        Some(self)
    }
}

impl MemoryOwner for Block {
    fn held_bytes(&self) -> Option<usize> {
        Some(self.capacity())
    }

    fn block_mut(&mut self) -> Option<&mut Block> {
        Some(self)
    }
}

impl MemoryOwner for bytes::Bytes {}

impl<T: crate::Number> MemoryOwner for Vec<T> {
    fn held_bytes(&self) -> Option<usize> {
        Some(self.capacity() * size_of::<T>())
    }
}

/// An IPC handle for device memory, and the address where that memory begins.
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
    /// Offset of the bytes in the memory that the handle opens.
    pub offset: usize,
}

impl IpcSource {
    /// The window that begins at `ptr` in the memory that the handle opens.
    pub(crate) fn window(self, ptr: NonNull<u8>) -> IpcWindow {
        IpcWindow { handle: self.handle, offset: ptr.addr().get() - self.base.addr().get() }
    }
}

impl std::fmt::Debug for IpcWindow {
    /// Omits the handle: anyone who knows it can open the memory.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IpcWindow(at {})", self.offset)
    }
}

/// Who may write the bytes while they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only this process, and only through Slots.
    Private,
    /// Another process, or a model that has a Slot over them, at any moment.
    Shared,
}
