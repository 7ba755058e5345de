//! What keeps bytes alive, and can they still be trusted?

use crate::Carrier;

/// Whatever owns memory that Buffers and Slots point into. Dropping the last reference releases the memory.
pub trait Keep: Send + Sync {
    /// Why these bytes can no longer be believed, if something happened to them since they were mapped: the text
    /// says what was expected and what is there. `None` for memory that only this process can touch.
    fn fault(&self) -> Option<String> {
        None
    }

    /// Who can read and write the bytes, if this process cannot: needed of whatever keeps memory of a device.
    fn carrier(&self) -> Option<&dyn Carrier> {
        None
    }
}

impl Keep for bytes::Bytes {}
impl<T: crate::Number> Keep for Vec<T> {}

/// Who may write the bytes while we look at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nobody but this process, and it does so only through Slots.
    Private,
    /// Another process, at any moment.
    Shared,
}
