//! How does a backend write a state for the next request of a sequence?

use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_memory::{Place, Slot};
use nerite_request::Status;
use nerite_tensor::{DataType, Shape, Tensor, byte_size, show_shape};

use super::{BufferAttributes, ResponsePath, object};
use crate::fault::Fault;
use crate::table::Handle;

/// `TRITONBACKEND_State`: the next value of one state of a sequence.
pub struct StateObject {
    path: Arc<ResponsePath>,
    name: String,
    datatype: DataType,
    shape: Shape,
    slot: Mutex<Option<Slot>>,
    attributes: Mutex<Handle<BufferAttributes>>,
}

object!(StateObject, 22, "state");

impl StateObject {
    /// A state without memory, whose output has this name.
    pub fn new(path: Arc<ResponsePath>, name: String, datatype: DataType, shape: Shape) -> StateObject {
        StateObject { path, name, datatype, shape, slot: Mutex::default(), attributes: Mutex::default() }
    }

    /// Allocates this many bytes for it. They replace its earlier memory.
    pub fn place(&self, bytes: usize) -> Result<*mut u8, Fault> {
        let new = Slot::try_heap(bytes);
        let mut new = new.map_err(|refused| Status::no_memory(format_args!("state '{}'", self.name), refused))?;
        let (address, bytes) = (new.as_mut_ptr(), new.len());
        *self.slot() = Some(new);
        let known = *self.attributes.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.is_null() {
            known.get()?.told().byte_size = bytes;
        }
        Ok(address)
    }

    /// The attributes of its memory. They are deleted with the state.
    pub fn attributes(&self) -> Result<Handle<BufferAttributes>, Fault> {
        let bytes = self.slot().as_ref().map(Slot::len).ok_or_else(|| self.without_memory())?;
        let mut made = self.attributes.lock().unwrap_or_else(PoisonError::into_inner);
        if made.is_null() {
            *made = Handle::to(Arc::new(BufferAttributes::new(Place::Host, bytes, None)))?;
        }
        Ok(*made)
    }

    /// The next request of the sequence gets what the backend has written.
    pub fn update(&self) -> Result<(), Fault> {
        let slot = self.slot().take().ok_or_else(|| self.without_memory())?;
        let expected = byte_size(self.datatype, &self.shape)
            .map_err(|error| Status::invalid(format!("state '{}': {error}", self.name)))?;
        if let Some(expected) = expected.filter(|expected| *expected != slot.len()) {
            return Err(Fault::misuse(format!(
                "state '{}' has a buffer of {} bytes, its shape {} of {} has {expected}",
                self.name,
                slot.len(),
                show_shape(&self.shape),
                self.datatype
            )));
        }
        let data = slot.filled().into_buffer();
        let (name, shape) = (self.name.as_str().into(), self.shape.clone());
        self.path.keep_state(Tensor { name, datatype: self.datatype, shape, data })
    }

    fn without_memory(&self) -> Fault {
        Fault::misuse(format!("state '{}' has no buffer, or was updated", self.name)).of(&self.path.owner)
    }

    fn slot(&self) -> MutexGuard<'_, Option<Slot>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StateObject {
    fn drop(&mut self) {
        let attributes = *self.attributes.lock().unwrap_or_else(PoisonError::into_inner);
        if !attributes.is_null() {
            // It is missing only if the backend deleted an object that is not its own.
            drop(attributes.take());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use nerite_backend::{Job, ModelVersion, Times};
    use nerite_request::{AdmittedRequest, Cancel, Name, Parameters, Reply, Sequence};

    use super::*;
    use crate::objects::Outstanding;

    /// A state of a request without tensors.
    fn state() -> StateObject {
        let request = AdmittedRequest {
            id: Name::default(),
            rows: 1,
            inputs: Vec::new().into(),
            wanted: Vec::new().into(),
            priority: 0,
            timeout_us: 0,
            sequence: Sequence::default(),
            parameters: Parameters::new(),
            cancel: Cancel::new(),
            reply: Reply::closed(),
        };
        let (_, responder) = Job::new(request, ModelVersion::unmetered("m").begin(), 1).divide();
        let counted = Arc::<Outstanding>::default().add();
        let path = ResponsePath::new(responder, counted, Arc::from("b"), false, Times::begin());
        StateObject::new(Arc::new(path), "s".to_owned(), DataType::Uint8, Shape::from_slice(&[1]))
    }

    #[test]
    fn the_attributes_tell_the_size_of_the_last_buffer() {
        let state = state();
        assert!(state.attributes().is_err());
        for bytes in [64, 128] {
            state.place(bytes).unwrap();
            assert_eq!(state.attributes().unwrap().get().unwrap().told().byte_size, bytes);
        }
        let handle = state.attributes().unwrap();
        state.place(32).unwrap();
        assert_eq!(handle.get().unwrap().told().byte_size, 32, "a backend may have kept the attributes");
    }
}
