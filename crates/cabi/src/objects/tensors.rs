//! What are inputs and outputs to a backend's code?

use std::ffi::CString;
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_memory::{Place, Slot};
use nerite_request::{Code, Status};
use nerite_tensor::{DataType, Shape, Tensor};

use super::{BufferAttributes, ResponsePath, c_text, object};
use crate::fault::Fault;
use crate::table::Handle;

/// `TRITONBACKEND_Input`. Its bytes stay where the client left them.
pub struct InputObject {
    /// Its name.
    pub name: CString,
    /// The tensor.
    pub tensor: Tensor,
    attributes: Mutex<Handle<BufferAttributes>>,
}

object!(InputObject, 10, "input");

impl InputObject {
    /// One input of a request.
    pub fn new(tensor: Tensor) -> InputObject {
        InputObject { name: c_text(&tensor.name), tensor, attributes: Mutex::default() }
    }

    /// What is told of its buffer. It ends with the input.
    pub fn attributes(&self) -> Result<Handle<BufferAttributes>, Fault> {
        let data = &self.tensor.data;
        shared_attributes(&self.attributes, data.place(), data.len(), data.ipc().map(|window| window.handle))
    }
}

impl Drop for InputObject {
    fn drop(&mut self) {
        end(&self.attributes);
    }
}

/// `TRITONBACKEND_Output`: an output of a response that is being made.
pub struct OutputObject {
    /// Whose output it is.
    pub path: Arc<ResponsePath>,
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub datatype: DataType,
    /// Its dimensions.
    pub shape: Shape,
    slot: Mutex<Option<Slot>>,
    attributes: Mutex<Handle<BufferAttributes>>,
}

object!(OutputObject, 11, "output");

impl OutputObject {
    /// An output without memory.
    pub fn new(path: Arc<ResponsePath>, name: String, datatype: DataType, shape: Shape) -> OutputObject {
        OutputObject { path, name, datatype, shape, slot: Mutex::default(), attributes: Mutex::default() }
    }

    /// Memory of so many bytes for it: the client's own place, if it named one. There is one for each output: asked again, it is
    /// refused, for the backend may still write what it has.
    pub fn place(&self, bytes: usize, preferred: Place) -> Result<(*mut u8, Place), Fault> {
        if holds_bytes(self.slot().as_ref()) {
            return Err(self.is_placed());
        }
        // Not under the lock, which a thread that sends the response takes after the path's.
        let mut new = self.path.output(&self.name, bytes, preferred)?;
        let found = (new.as_mut_ptr(), new.place());
        let mut slot = self.slot();
        if holds_bytes(slot.as_ref()) {
            return Err(self.is_placed());
        }
        *slot = Some(new);
        Ok(found)
    }

    fn slot(&self) -> MutexGuard<'_, Option<Slot>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_placed(&self) -> Fault {
        Fault::from(Status::new(
            Code::AlreadyExists,
            format!("allocated buffer for output '{}' already exists", self.name),
        ))
    }

    /// The memory that the backend has written.
    pub fn take_slot(&self) -> Option<Slot> {
        self.slot().take()
    }

    /// What is told of its buffer. It ends with the output.
    pub fn attributes(&self) -> Result<Handle<BufferAttributes>, Fault> {
        let slot = self.slot();
        let Some(slot) = slot.as_ref() else {
            return Err(Fault::misuse(format!("output '{}' has no buffer yet", self.name)));
        };
        shared_attributes(&self.attributes, slot.place(), slot.len(), slot.ipc().map(|window| window.handle))
    }
}

impl Drop for OutputObject {
    fn drop(&mut self) {
        end(&self.attributes);
    }
}

/// Whether the backend may write there.
fn holds_bytes(slot: Option<&Slot>) -> bool {
    slot.is_some_and(|slot| !slot.is_empty())
}

/// The attributes that belong to a tensor, made when they are first asked for.
fn shared_attributes(
    made: &Mutex<Handle<BufferAttributes>>,
    place: Place,
    bytes: usize,
    ipc: Option<[u8; 64]>,
) -> Result<Handle<BufferAttributes>, Fault> {
    let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
    if made.is_null() {
        *made = Handle::to(Arc::new(BufferAttributes::new(place, bytes, ipc)))?;
    }
    Ok(*made)
}

fn end(attributes: &Mutex<Handle<BufferAttributes>>) {
    let attributes = *attributes.lock().unwrap_or_else(PoisonError::into_inner);
    if !attributes.is_null() {
        // Only a backend that deletes what is not its own ended it before.
        drop(attributes.take());
    }
}
