//! What does a backend's request to another model consist of?

use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_config::{ModelConfig, raw_input};
use nerite_locks::Mutex;
use nerite_memory::MemoryOwner;
use nerite_request::{Cancel, Parameters, PolicyData, Sequence, SequenceId, Status};
use nerite_tensor::{DataType, Shape, Tensor};

use super::callbacks::{Kept, RequestReleaseFn, RespondFn};
use super::{Allocating, Counted, InferenceResponse, InputContent, ServerObject, c_text, object, request_prefix};
use crate::fault::Fault;

/// `TRITONSERVER_InferenceRequest`.
pub struct InferenceRequest {
    /// The models that it may be sent to.
    pub server: Arc<ServerObject>,
    /// The model that it is sent to.
    pub model: String,
    /// The version of the model; `None` for the highest.
    pub version: Option<i64>,
    /// Whether classes of the model's outputs have labels.
    pub has_labels: bool,
    content: Mutex<RequestContent>,
    /// The flag of its last inference.
    cancel: Mutex<Cancel>,
    /// The number of its last inference.
    last_inference: AtomicU64,
    /// The number of its present inference, while it is the server's. 0 while it is the backend's.
    inference: AtomicU64,
    _held: Counted,
}

object!(InferenceRequest, 19, "inference request");

/// The content of such a request.
#[derive(Default)]
pub struct RequestContent {
    /// The backend's own name for it.
    pub id: CString,
    /// The sequence that it belongs to.
    pub sequence: Sequence,
    /// The sequence's name, if that is a text.
    pub sequence_text: CString,
    /// Priority, 0 for the model's default.
    pub priority: u64,
    /// Longest time in the queue, 0 for the model's default.
    pub timeout_us: u64,
    /// Its parameters.
    pub parameters: Parameters,
    /// Its inputs, in the backend's order.
    pub inputs: Vec<InputContent>,
    /// The outputs that it wants; none for all.
    pub wanted: Vec<String>,
    /// The function that returns it to the backend.
    pub release: Option<(RequestReleaseFn<InferenceRequest>, Kept)>,
    /// The function that gets the responses.
    pub respond: Option<Respond>,
}

/// The function that gets the responses, and how memory for them is allocated.
#[derive(Clone)]
pub struct Respond {
    /// Allocates the memory of outputs.
    pub allocating: Allocating,
    /// The function.
    pub function: RespondFn<InferenceResponse>,
    /// The address that it gets.
    pub userp: Kept,
}

impl InferenceRequest {
    /// A request for that version of a model.
    pub fn new(server: Arc<ServerObject>, model: String, version: Option<i64>, has_labels: bool) -> InferenceRequest {
        let held = server.held.add();
        InferenceRequest {
            server,
            model,
            version,
            has_labels,
            content: Mutex::default(),
            cancel: Mutex::default(),
            last_inference: AtomicU64::new(0),
            inference: AtomicU64::new(0),
            _held: held,
        }
    }

    /// The content, to read or to change.
    pub fn content(&self) -> MutexGuard<'_, RequestContent> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The flag of its last inference.
    fn cancel(&self) -> Cancel {
        self.cancel.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Cancels its last inference. If the inference waits, it is answered on another thread, because the backend's
    /// functions may take a lock that the caller holds.
    pub fn cancel_inference(&self) -> Result<(), Fault> {
        self.check_was_sent("cancel an inference request")?;
        let Some(notify) = self.cancel().begin_cancel() else { return Ok(()) };
        if let Err(error) = std::thread::Builder::new().name("nerite-cancel".to_owned()).spawn(notify) {
            log::warn!(
                "no thread to answer a cancelled request to model '{}': {error}; it is answered when its turn comes; raise the limit on threads",
                self.model
            );
        }
        Ok(())
    }

    /// Whether its last inference is cancelled.
    pub fn is_cancelled(&self) -> Result<bool, Fault> {
        self.check_was_sent("query cancellation status")?;
        Ok(self.cancel().is_cancelled())
    }

    /// Refuses in Triton's words if it was never sent.
    fn check_was_sent(&self, what: &str) -> Result<(), Fault> {
        if self.last_inference.load(Ordering::Relaxed) > 0 {
            return Ok(());
        }
        Err(Status::internal(format!("It is not possible to {what} before calling TRITONSERVER_InferAsync.")).into())
    }

    /// Records that it is the server's from now on; an error if it is already. Returns the number and the flag of the
    /// inference.
    pub fn begin_inference(&self) -> Result<(u64, Cancel), Fault> {
        let number = self.last_inference.fetch_add(1, Ordering::Relaxed) + 1;
        if self.inference.compare_exchange(0, number, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return Err(self.in_flight());
        }
        let new = Cancel::new();
        *self.cancel.lock().unwrap_or_else(PoisonError::into_inner) = new.clone();
        Ok((number, new))
    }

    /// Records that it is the backend's again, if `inference` is its present one. Memory of a refused inference may
    /// still be in use when the next inference has begun.
    pub fn end_inference(&self, inference: u64) {
        let _ = self.inference.compare_exchange(inference, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Refuses if it is the server's.
    pub fn check_not_in_flight(&self) -> Result<(), Fault> {
        if self.inference.load(Ordering::Acquire) != 0 { Err(self.in_flight()) } else { Ok(()) }
    }

    fn in_flight(&self) -> Fault {
        Fault::misuse(format!(
            "the inference request to model '{}' is the server's until its release function is called",
            self.model
        ))
        .of(&self.server.owner)
    }
}

impl RequestContent {
    /// Sets the id of its sequence, if that is a text.
    pub fn set_sequence_text(&mut self, id: String) {
        self.sequence_text = c_text(&id);
        self.sequence.id = if id.is_empty() { SequenceId::None } else { SequenceId::Text(id) };
    }

    /// Adds an input.
    pub fn add_input(&mut self, input: InputContent) -> Result<(), Fault> {
        if self.inputs.iter().any(|one| one.name == input.name) {
            return Err(self.invalid(&format!("input '{}' already exists in request", input.name)));
        }
        self.inputs.push(input);
        Ok(())
    }

    /// Adds an input whose name, datatype and shape are those of the model's only input. The request names it so until it is sent.
    pub fn add_raw_input(&mut self, name: String) -> Result<(), Fault> {
        if !self.inputs.is_empty() {
            return Err(self.invalid(&format!("raw input '{name}' can't be added to request with other inputs")));
        }
        self.inputs.push(InputContent::raw(name));
        Ok(())
    }

    /// The input of this name.
    pub fn input(&mut self, name: &str) -> Result<&mut InputContent, Fault> {
        match self.inputs.iter().position(|input| input.name == name) {
            Some(at) => Ok(&mut self.inputs[at]),
            None => Err(self.invalid(&format!("input '{name}' does not exist in request"))),
        }
    }

    /// Its inputs as tensors over the backend's memory, which `keep` keeps, and their data for instances of one host policy each. `config` returns
    /// the model's configuration.
    pub fn tensors(
        &self,
        keep: &Arc<dyn MemoryOwner>,
        config: impl FnOnce() -> Result<Arc<ModelConfig>, Status>,
    ) -> Result<(Vec<Tensor>, Vec<PolicyData>), Status> {
        let mut of_policies = Vec::new();
        for input in &self.inputs {
            input.add_of_policies(&self.prefix(), keep, &mut of_policies)?;
        }
        if self.inputs.iter().any(|input| input.is_raw) {
            return Ok((vec![self.raw_tensor(&*config()?, keep)?], of_policies));
        }
        let tensors = self.inputs.iter().map(|input| input.tensor(keep)).collect::<Result<_, _>>()?;
        Ok((tensors, of_policies))
    }

    fn raw_tensor(&self, config: &ModelConfig, keep: &Arc<dyn MemoryOwner>) -> Result<Tensor, Status> {
        let (known, bytes) = (config.inputs(), self.inputs.iter().map(InputContent::byte_size).sum());
        let found = raw_input(&config.name, config.max_batch_size, &known, self.inputs.len(), bytes);
        let (spec, datatype, shape) = found.map_err(|text| Status::invalid(format!("{}{text}", self.prefix())))?;
        let only = self.inputs.first().ok_or_else(|| Status::internal("a raw request has an input"))?;
        let data = if datatype == DataType::Bytes { only.as_string(keep)? } else { only.data(keep)? };
        Ok(Tensor { name: spec.name.clone(), datatype, shape: Shape::from_vec(shape), data })
    }

    /// `[request id: x] `, with which Triton begins the texts of these errors.
    fn prefix(&self) -> String {
        request_prefix(&self.id)
    }

    fn invalid(&self, text: &str) -> Fault {
        Status::invalid(format!("{}{text}", self.prefix())).into()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use nerite_backend::Models;

    use super::*;

    fn request() -> InferenceRequest {
        let server = ServerObject::new(&Arc::from("b"), Models::none(), None);
        InferenceRequest::new(Arc::new(server), "m".to_owned(), None, false)
    }

    #[test]
    fn the_end_of_an_inference_does_not_end_the_next_one() {
        let request = request();
        let (refused, _) = request.begin_inference().unwrap();
        assert!(request.check_not_in_flight().is_err() && request.begin_inference().is_err());
        request.end_inference(refused);
        assert!(request.check_not_in_flight().is_ok());
        let (next, _) = request.begin_inference().unwrap();
        request.end_inference(refused);
        assert!(request.check_not_in_flight().is_err(), "it is the server's");
        request.end_inference(next);
        assert!(request.check_not_in_flight().is_ok());
    }

    #[test]
    fn a_cancelled_inference_is_not_answered_by_the_thread_that_cancels_it() {
        let request = request();
        let (to, answering_thread) = std::sync::mpsc::channel();
        assert!(
            request.begin_inference().unwrap().1.on_cancelled(move || to.send(std::thread::current().id()).unwrap())
        );
        request.cancel_inference().unwrap();
        assert!(request.is_cancelled().unwrap());
        assert_ne!(answering_thread.recv().unwrap(), std::thread::current().id());
    }
}
