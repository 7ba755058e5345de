//! What do the handles of inputs and outputs stand for?

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};

use nerite_locks::Mutex;
use nerite_memory::{Buffer, Place, Slot};
use nerite_request::{Code, PolicyData, Status};
use nerite_tensor::{DataType, Name, Shape, Tensor};

use super::{BufferAttributes, ResponsePath, c_text, object};
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
    attributes: Mutex<Handle<BufferAttributes>>,
}

object!(InputObject, 10, "input");

impl InputObject {
    /// One input of a request, with what the request has for instances of one host policy each.
    pub fn new(name: Arc<CStr>, tensor: Tensor, of_policies: &[PolicyData]) -> InputObject {
        let own = of_policies.iter().filter(|one| one.input == tensor.name);
        let of_policies = own.map(|one| (one.policy.clone(), one.data.clone())).collect();
        InputObject { name, tensor, of_policies, attributes: Mutex::default() }
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
        end(&mut self.attributes);
    }
}

/// `TRITONBACKEND_Output`: an output of a response that is being made.
pub struct OutputObject {
    /// The response path of its request.
    pub path: Arc<ResponsePath>,
    /// Its name.
    pub name: Name,
    /// The same for C, made when it is first asked for.
    c_name: OnceLock<CString>,
    /// Its datatype.
    pub datatype: DataType,
    /// Its dimensions.
    pub shape: Shape,
    slot: Mutex<Option<Slot>>,
    /// Whether it has memory, or is about to get some.
    is_placed: AtomicBool,
    attributes: Mutex<Handle<BufferAttributes>>,
}

object!(OutputObject, 11, "output");

impl OutputObject {
    /// An output without memory.
    pub fn new(path: Arc<ResponsePath>, name: Name, datatype: DataType, shape: Shape) -> OutputObject {
        OutputObject {
            path,
            name,
            c_name: OnceLock::new(),
            datatype,
            shape,
            slot: Mutex::default(),
            is_placed: AtomicBool::new(false),
            attributes: Mutex::default(),
        }
    }

    /// Its name as C reads it.
    pub fn c_name(&self) -> &CStr {
        self.c_name.get_or_init(|| c_text(&self.name))
    }

    /// Memory of this many bytes for it: the client's own memory, if it named some. A second call is refused, because
    /// the backend may still write to the memory of the first one.
    pub fn place(&self, bytes: usize, preferred: Place) -> Result<(*mut u8, Place), Fault> {
        if self.is_placed.swap(true, Ordering::AcqRel) {
            return Err(self.has_memory());
        }
        // This is done without the lock: a thread that sends the response takes it while it holds that of the path.
        let new = self.path.output(&self.name, bytes, preferred);
        if !new.as_ref().is_ok_and(|slot| !slot.is_empty()) {
            // Memory of no bytes cannot be written to, and may be asked for again.
            self.is_placed.store(false, Ordering::Release);
        }
        let mut new = new?;
        let found = (new.as_mut_ptr(), new.place());
        *self.slot() = Some(new);
        Ok(found)
    }

    fn slot(&self) -> MutexGuard<'_, Option<Slot>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_memory(&self) -> Fault {
        Fault::from(Status::new(
            Code::AlreadyExists,
            format!("allocated buffer for output '{}' already exists", self.name),
        ))
    }

    /// The memory that the backend has written.
    pub fn take_slot(&self) -> Option<Slot> {
        self.slot().take()
    }

    /// The attributes of its buffer. They are deleted with it.
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
        end(&mut self.attributes);
    }
}

/// The attributes of a tensor, made at first use.
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

fn end(attributes: &mut Mutex<Handle<BufferAttributes>>) {
    let attributes = *attributes.get_mut().unwrap_or_else(PoisonError::into_inner);
    if !attributes.is_null() {
        // Only a backend that deletes the server's objects has deleted it before.
        drop(attributes.take());
    }
}
