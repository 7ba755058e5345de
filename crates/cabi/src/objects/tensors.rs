//! What do the handles of inputs and outputs stand for?

use std::cell::{Cell, OnceCell, RefCell};
use std::ffi::{CStr, CString};
use std::sync::Arc;

use nerite_memory::{Buffer, Place, Slot};
use nerite_request::{Code, PolicyData, Status};
use nerite_tensor::{DataType, Name, Shape, Tensor};

use super::{AttributeValues, BufferAttributes, ResponsePath, c_text, object};
use crate::fault::Fault;
use crate::table::Handle;

/// `TRITONBACKEND_Input`. Its bytes stay in the client's memory.
pub struct InputObject {
    /// Its name.
    pub name: Arc<CStr>,
    /// The tensor.
    pub tensor: Tensor,
    /// Its data for instances of one host policy each, by the policy's name.
    of_policies: Vec<(Name, Buffer)>,
    attributes: Cell<Handle<BufferAttributes>>,
}

object!(InputObject, 10, "input", Box<InputObject>);

impl InputObject {
    /// One input of a request, with what the request has for instances of one host policy each.
    pub fn new(name: Arc<CStr>, tensor: Tensor, of_policies: &[PolicyData]) -> InputObject {
        let own = of_policies.iter().filter(|one| one.input == tensor.name);
        let of_policies = own.map(|one| (one.policy.clone(), one.data.clone())).collect();
        InputObject { name, tensor, of_policies, attributes: Cell::default() }
    }

    /// Its data for instances of the host policy that `policy` returns. A policy without data of its own gets the data for all others.
    pub fn data_for(&self, policy: impl FnOnce() -> Option<String>) -> &Buffer {
        if self.of_policies.is_empty() {
            return &self.tensor.data;
        }
        let policy = policy();
        let own = self.of_policies.iter().find(|(name, _)| Some(name.as_str()) == policy.as_deref());
        own.map_or(&self.tensor.data, |(_, data)| data)
    }

    /// The attributes of its buffer. They are deleted with it.
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
    /// The response path of its request.
    pub path: Arc<ResponsePath>,
    /// Its name.
    pub name: Name,
    /// The name as C reads it, made at first use.
    c_name: OnceCell<CString>,
    /// Its datatype.
    pub datatype: DataType,
    /// Its dimensions.
    pub shape: Shape,
    slot: RefCell<Option<Slot>>,
    /// Whether it has memory, or is about to get some.
    is_placed: Cell<bool>,
    attributes: Cell<Handle<BufferAttributes>>,
}

object!(OutputObject, 11, "output", Box<OutputObject>);

impl OutputObject {
    /// An output without memory.
    pub fn new(path: Arc<ResponsePath>, name: Name, datatype: DataType, shape: Shape) -> OutputObject {
        OutputObject {
            path,
            name,
            c_name: OnceCell::new(),
            datatype,
            shape,
            slot: RefCell::default(),
            is_placed: Cell::new(false),
            attributes: Cell::default(),
        }
    }

    /// Its name as C reads it.
    pub fn c_name(&self) -> &CStr {
        self.c_name.get_or_init(|| c_text(&self.name))
    }

    /// Begins to get memory for it, and returns what [`ResponsePath::output`] needs for that. A second call is refused, because the backend may still
    /// write to the memory of the first one.
    fn begin_place(&self) -> Result<(Arc<ResponsePath>, Name), Fault> {
        if self.is_placed.replace(true) {
            return Err(self.has_memory());
        }
        Ok((Arc::clone(&self.path), self.name.clone()))
    }

    /// Keeps the memory. Returns where it is.
    fn end_place(&self, new: Result<Slot, Fault>) -> Result<(*mut u8, Place), Fault> {
        // Memory of no bytes cannot be written to, and may be requested again.
        self.is_placed.set(new.as_ref().is_ok_and(|slot| !slot.is_empty()));
        let mut new = new?;
        let found = (new.as_mut_ptr(), new.place());
        self.update_attributes(&new);
        self.slot.replace(Some(new));
        Ok(found)
    }

    /// Updates the attributes, which the backend may have read when the memory had no bytes.
    fn update_attributes(&self, new: &Slot) {
        let made = self.attributes.get();
        if made.is_null() {
            return;
        }
        if let Ok(attributes) = made.get() {
            *attributes.values() = AttributeValues::of(new.place(), new.len(), new.ipc().map(|window| window.handle));
        }
    }

    fn has_memory(&self) -> Fault {
        Fault::from(Status::new(
            Code::AlreadyExists,
            format!("allocated buffer for output '{}' already exists", self.name),
        ))
    }

    /// The memory that the backend has written.
    pub fn take_slot(&self) -> Option<Slot> {
        self.slot.take()
    }

    /// The attributes of its buffer. They are deleted with it.
    pub fn attributes(&self) -> Result<Handle<BufferAttributes>, Fault> {
        let slot = self.slot.borrow();
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

impl Handle<OutputObject> {
    /// Memory of this many bytes for the output: the client's own memory, if it named some.
    pub fn place(self, bytes: usize, preferred: Place) -> Result<(*mut u8, Place), Fault> {
        let (path, name) = self.with(OutputObject::begin_place)?;
        // The output is not locked meanwhile. This may take long, and a thread that sends the response locks the path first and then its outputs.
        let new = path.output(&name, bytes, preferred);
        self.with(|output| output.end_place(new))
    }
}

/// The attributes of a tensor, made at first use.
fn shared_attributes(
    made: &Cell<Handle<BufferAttributes>>,
    place: Place,
    bytes: usize,
    ipc: Option<[u8; 64]>,
) -> Result<Handle<BufferAttributes>, Fault> {
    if made.get().is_null() {
        made.set(Handle::to(Arc::new(BufferAttributes::new(place, bytes, ipc)))?);
    }
    Ok(made.get())
}

fn end(attributes: &Cell<Handle<BufferAttributes>>) {
    let attributes = attributes.get();
    if !attributes.is_null() {
        // The object is missing only if the backend deleted an object that is not its own.
        drop(attributes.take());
    }
}
