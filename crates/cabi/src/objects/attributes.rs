//! What are the attributes of a buffer?

use std::sync::{MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_memory::Place;

use super::object;

/// `TRITONSERVER_BufferAttributes`.
#[derive(Default)]
pub struct BufferAttributes(Mutex<AttributeValues>);

/// The values of the attributes.
#[derive(Default)]
pub struct AttributeValues {
    /// The type of memory: 0 for the host, 1 for page-locked memory, 2 for a GPU.
    pub memory_type: u32,
    /// The number of the GPU.
    pub memory_id: i64,
    /// Its size.
    pub byte_size: usize,
    /// The handle with which another process opens it. In a box, because C keeps its address.
    pub ipc: Option<Box<[u8; 64]>>,
}

object!(BufferAttributes, 4, "buffer attributes object");

impl BufferAttributes {
    /// The attributes of memory at `place`.
    pub fn new(place: Place, byte_size: usize, ipc: Option<[u8; 64]>) -> BufferAttributes {
        BufferAttributes(Mutex::new(AttributeValues::of(place, byte_size, ipc)))
    }

    /// The attributes, to read or to change.
    pub fn values(&self) -> MutexGuard<'_, AttributeValues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AttributeValues {
    /// The attributes of memory at `place`.
    pub fn of(place: Place, byte_size: usize, ipc: Option<[u8; 64]>) -> AttributeValues {
        let (memory_type, memory_id) = memory_of(place);
        AttributeValues { memory_type, memory_id, byte_size, ipc: ipc.map(Box::new) }
    }
}

/// The interface's numbers for a kind of memory: memory type and device.
pub fn memory_of(place: Place) -> (u32, i64) {
    match place {
        Place::Host => (0, 0),
        Place::Pinned => (1, 0),
        Place::Device(ordinal) => (2, i64::from(ordinal)),
    }
}
