//! What is a response that a backend makes?

use std::cell::RefCell;
use std::sync::Arc;

use nerite_memory::Slot;
use nerite_request::{Parameter, Parameters, Status};
use nerite_tensor::{byte_size, show_shape};

use nerite_backend::Responder;
use smallvec::SmallVec;

use super::{OutputObject, ResponsePath, object};
use crate::fault::Fault;
use crate::limits::OUTPUTS_MAX;
use crate::table::Handle;

/// `TRITONBACKEND_Response`.
pub struct ResponseObject {
    /// The response path of its request.
    pub path: Arc<ResponsePath>,
    content: RefCell<Content>,
}

/// The content of a response so far.
#[derive(Default)]
struct Content {
    /// Up to two outputs need no allocation. The response owns them.
    outputs: SmallVec<[Handle<OutputObject>; 2]>,
    parameters: Parameters,
}

object!(ResponseObject, 13, "response", Box<ResponseObject>);

impl ResponseObject {
    /// A response without outputs.
    pub fn new(path: Arc<ResponsePath>) -> ResponseObject {
        ResponseObject { path, content: RefCell::default() }
    }

    /// Adds an output.
    pub fn add(&self, output: OutputObject) -> Result<Handle<OutputObject>, Fault> {
        let mut content = self.content.borrow_mut();
        let outputs = &mut content.outputs;
        if outputs.len() >= OUTPUTS_MAX {
            return Err(Fault::misuse(format!("a response has at most {OUTPUTS_MAX} outputs")));
        }
        let handle = Handle::to(Box::new(output))?;
        outputs.push(handle);
        Ok(handle)
    }

    /// The number of its outputs.
    pub fn output_count(&self) -> usize {
        self.content.borrow().outputs.len()
    }

    /// The output at this index.
    pub fn output_at(&self, index: u32) -> Option<Handle<OutputObject>> {
        self.content.borrow().outputs.get(index as usize).copied()
    }

    /// The first output of this name.
    pub fn output_named(&self, name: &str) -> Option<Handle<OutputObject>> {
        let content = self.content.borrow();
        let mut outputs = content.outputs.iter().copied();
        outputs.find(|output| output.with(|output| Ok(*output.name == *name)).unwrap_or(false))
    }

    /// Adds a parameter.
    pub fn set_parameter(&self, key: String, value: Parameter) {
        self.content.borrow_mut().parameters.insert(key, value);
    }

    /// Moves its outputs to the response that is sent. Outputs that the client did not request are left out.
    pub fn fill(&self, responder: &mut Responder) -> Result<(), Status> {
        let mut content = self.content.borrow_mut();
        // Only the response deletes its outputs.
        let outputs: SmallVec<[Box<OutputObject>; 2]> =
            content.outputs.drain(..).filter_map(|handle| handle.take().ok()).collect();
        for output in &outputs {
            let slot = output.take_slot();
            let Some(index) = responder.output_index(&output.name) else { continue };
            let expected = byte_size(output.datatype, &output.shape)
                .map_err(|error| Status::internal(format!("output '{}': {error}", output.name)))?;
            let found = slot.as_ref().map_or(0, Slot::len);
            if expected.is_some_and(|expected| expected != found) {
                return Err(Status::internal(format!(
                    "backend '{}' gave output '{}' a buffer of {found} bytes, its shape {} of {} has {}",
                    self.path.owner,
                    output.name,
                    show_shape(&output.shape),
                    output.datatype,
                    expected.unwrap_or(0)
                )));
            }
            let slot = match slot {
                Some(slot) => slot,
                None => responder.output_bytes(index, 0)?,
            };
            responder.put(index, output.datatype, output.shape.clone(), slot.filled());
        }
        responder.set_parameters(std::mem::take(&mut content.parameters));
        Ok(())
    }
}

impl Drop for ResponseObject {
    fn drop(&mut self) {
        for handle in self.content.get_mut().outputs.drain(..) {
            // As in `fill`, they were not deleted before.
            drop(handle.take());
        }
    }
}

/// `TRITONBACKEND_ResponseFactory`: makes responses after the request was released.
pub struct Factory {
    /// The path of its responses.
    pub path: Arc<ResponsePath>,
}

object!(Factory, 14, "response factory");
