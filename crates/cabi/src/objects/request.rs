//! What is a request to a backend's code?

use std::ffi::CString;
use std::sync::Arc;

use nerite_backend::{Job, Times};
use nerite_request::{Sequence, SequenceId};

use super::{Counted, InputObject, ModelObject, ResponsePath, Value, c_text, object};
use crate::table::Handle;

/// `TRITONBACKEND_Request`. It keeps the inputs until it is released.
pub struct RequestObject {
    /// The client's own name for it.
    pub id: CString,
    /// The sequence it belongs to.
    pub sequence: Sequence,
    /// The sequence's name, if that is a text.
    pub sequence_text: CString,
    /// Longest time in the queue.
    pub timeout_us: u64,
    /// What the client says beside its tensors.
    pub parameters: Vec<(CString, Value)>,
    /// The inputs, in the client's order.
    pub inputs: Vec<(Handle<InputObject>, Arc<InputObject>)>,
    /// Names of the outputs that are wanted.
    pub wanted: Vec<CString>,
    /// The way back.
    pub path: Arc<ResponsePath>,
}

object!(RequestObject, 12, "request");

impl RequestObject {
    /// The request of a job, for a model whose run began at `times`; `None` if there were no handles for it, and its client was told.
    pub fn new(job: Job, model: &ModelObject, counted: Counted, times: Times) -> Option<RequestObject> {
        let (id, sequence, timeout_us) = (c_text(job.id()), job.sequence().clone(), job.timeout_us());
        let parameters = job.parameters().iter().map(|(key, value)| (c_text(key), Value::from(value))).collect();
        let wanted = job.wanted().map(c_text).collect();
        let (tensors, responder) = job.divide();
        let mut inputs = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let input = Arc::new(InputObject::new(tensor));
            match Handle::to(Arc::clone(&input)) {
                Ok(handle) => inputs.push((handle, input)),
                Err(fault) => {
                    for (handle, _) in inputs {
                        drop(Handle::take(handle));
                    }
                    responder.refuse(fault.told("TRITONBACKEND_ModelInstanceExecute"));
                    return None;
                }
            }
        }
        let sequence_text = match &sequence.id {
            SequenceId::Text(text) => c_text(text),
            _ => CString::default(),
        };
        let is_decoupled = model.config().decoupled();
        let path =
            Arc::new(ResponsePath::new(responder, counted, Arc::clone(&model.backend.owner), is_decoupled, times));
        Some(RequestObject { id, sequence, sequence_text, timeout_us, parameters, inputs, wanted, path })
    }
}

impl Drop for RequestObject {
    fn drop(&mut self) {
        for (handle, _) in self.inputs.drain(..) {
            // Inputs are the request's, so nobody else ended them.
            drop(handle.take());
        }
    }
}
