//! How does a backend write a state for the next request of a sequence?

use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_memory::{Buffer, Extent, NoMemory, Place, Reason, Slot};
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
    /// The previous state, if the next one is written over it.
    before: Option<Buffer>,
    slot: Mutex<Option<Slot>>,
    attributes: Mutex<Handle<BufferAttributes>>,
}

object!(StateObject, 22, "state");

impl StateObject {
    /// A state without memory, whose output has this name. With `use_same_buffer_for_input_output`, `before` is the previous state, and
    /// the memory begins with its content.
    pub fn new(
        path: Arc<ResponsePath>,
        name: String,
        datatype: DataType,
        shape: Shape,
        before: Option<Buffer>,
    ) -> StateObject {
        StateObject { path, name, datatype, shape, before, slot: Mutex::default(), attributes: Mutex::default() }
    }

    /// Allocates this many bytes for it. They replace its earlier memory.
    pub fn place(&self, bytes: usize) -> Result<*mut u8, Fault> {
        let mut new = match &self.before {
            Some(before) => self.over(before, bytes)?,
            None => self.fresh(bytes)?,
        };
        let (address, bytes) = (new.as_mut_ptr(), new.len());
        *self.slot() = Some(new);
        let known = *self.attributes.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.is_null() {
            known.get()?.values().byte_size = bytes;
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

    /// Passes what the backend has written to the next request of the sequence.
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

    /// Memory that is all zero. The next request gets the bytes that the backend leaves unwritten, and without this they could be another client's.
    fn fresh(&self, bytes: usize) -> Result<Slot, Fault> {
        let mut new = Slot::try_heap(bytes).map_err(|refused| self.no_memory(refused))?;
        new.clear();
        Ok(new)
    }

    /// The memory of the previous state. If that belongs to others, as the initial state does, or has another size, the state is copied once.
    fn over(&self, before: &Buffer, bytes: usize) -> Result<Slot, Fault> {
        if let Some(same) = before.rewrite().filter(|same| same.len() == bytes) {
            return Ok(same);
        }
        let mut new = Slot::try_rewritable(bytes).map_err(|refused| self.no_memory(refused))?;
        if before.len() < bytes {
            new.clear();
        }
        let kept = before.len().min(bytes);
        let kept = Extent::new(0, kept, before.len()).map_err(|error| Status::internal(error.to_string()))?;
        let copied = new.fill_from(0, &before.slice(kept), Reason::SequenceState);
        copied.map_err(|error| Status::internal(format!("state '{}': {error}", self.name)))?;
        Ok(new)
    }

    fn no_memory(&self, refused: NoMemory) -> Status {
        Status::no_memory(format_args!("state '{}'", self.name), refused)
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
    use nerite_memory::copied_bytes;
    use nerite_request::{AdmittedRequest, Reply};

    use super::*;
    use crate::objects::Outstanding;

    /// A state of a request without tensors, which is written over the one before it if there is one.
    fn state_after(before: Option<Buffer>) -> StateObject {
        let request = AdmittedRequest::new(Reply::closed());
        let job = Job::new(request, ModelVersion::unmetered("m").begin(), 1);
        let counted = Arc::<Outstanding>::default().add();
        let path = ResponsePath::new(job, counted, Arc::from("b"), Arc::default(), Times::begin());
        StateObject::new(Arc::new(path), "s".to_owned(), DataType::Uint8, Shape::from_slice(&[1]), before)
    }

    fn state() -> StateObject {
        state_after(None)
    }

    /// Places a state of this many bytes over the one before it. Returns the memory and how many bytes were copied.
    fn place_after(before: &Buffer, bytes: usize) -> (Slot, u64) {
        let counted = copied_bytes(Reason::SequenceState);
        let state = state_after(Some(before.clone()));
        let address = state.place(bytes).unwrap();
        let mut slot = state.slot().take().unwrap();
        assert_eq!((slot.as_mut_ptr(), slot.len()), (address, bytes));
        (slot, copied_bytes(Reason::SequenceState) - counted)
    }

    #[test]
    fn a_state_is_written_over_the_one_before_it() {
        let bytes = |buffer: &Buffer| {
            let mut seen = vec![0; buffer.len()];
            buffer.copy_to(&mut seen, Reason::Model);
            seen
        };
        // The initial state belongs to all sequences.
        let initial = Buffer::from_numbers(vec![1u8, 2, 3]);
        let (slot, copied) = place_after(&initial, 3);
        let first = slot.filled().into_buffer();
        assert_eq!((bytes(&first), copied), (vec![1, 2, 3], 3));
        let (mut slot, copied) = place_after(&first, 3);
        slot.write(0, &[7], Reason::Model).unwrap();
        let second = slot.filled().into_buffer();
        assert_eq!((second.as_ptr(), bytes(&second), copied), (first.as_ptr(), vec![7, 2, 3], 0));
        assert_eq!(bytes(&initial), [1, 2, 3]);
        // It grows, and shrinks.
        let (slot, copied) = place_after(&second, 5);
        let third = slot.filled().into_buffer();
        assert_eq!((&bytes(&third)[..3], copied), (&[7, 2, 3][..], 3));
        let (slot, copied) = place_after(&third, 2);
        assert_eq!((bytes(&slot.filled().into_buffer()), copied), (vec![7, 2], 2));
    }

    #[test]
    fn the_attributes_have_the_size_of_the_last_buffer() {
        let state = state();
        assert!(state.attributes().is_err());
        for bytes in [64, 128] {
            state.place(bytes).unwrap();
            assert_eq!(state.attributes().unwrap().get().unwrap().values().byte_size, bytes);
        }
        let handle = state.attributes().unwrap();
        state.place(32).unwrap();
        assert_eq!(handle.get().unwrap().values().byte_size, 32, "a backend may have kept the attributes");
    }
}
