//! What does the handle of a request stand for?

use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::sync::{Arc, PoisonError};

use nerite_backend::{Job, Times, WaitingRequest};
use nerite_config::ModelConfig;
use nerite_locks::Mutex;
use nerite_request::{Cancel, Parameters, PolicyData, Sequence, SequenceId, Status};
use nerite_tensor::{DataType, Shape, Tensor};
use smallvec::SmallVec;

use super::{
    Counted, InputObject, ModelObject, ResponsePath, StateObject, TraceObject, TraceOf, Value, c_cow, c_text, object,
};
use crate::fault::Fault;
use crate::limits::OUTPUTS_MAX;
use crate::table::Handle;

/// `TRITONBACKEND_Request`. It holds the inputs until it is released.
pub struct RequestObject {
    /// The client's id.
    pub id: Cow<'static, CStr>,
    /// The sequence it belongs to.
    pub sequence: Sequence,
    /// The sequence's name, if that is a text.
    pub sequence_text: Cow<'static, CStr>,
    /// Longest time in the queue.
    pub timeout_us: u64,
    /// The client's parameters.
    pub parameters: Vec<(CString, Value)>,
    /// The inputs, in the client's order.
    pub inputs: SmallVec<[(Handle<InputObject>, Arc<InputObject>); 2]>,
    /// Names of the requested outputs.
    pub wanted: Names,
    way: Way,
    config: Arc<ModelConfig>,
    version: u64,
    /// The states that it keeps for the next request of its sequence.
    states: Mutex<Vec<Handle<StateObject>>>,
}

object!(RequestObject, 12, "request");

/// Names of outputs. Up to two need no allocation.
type Names = SmallVec<[Arc<CStr>; 2]>;

/// The state of the request.
enum Way {
    /// It runs.
    Runs(Arc<ResponsePath>),
    /// It waits, and a batching strategy reads it. This is its client's flag.
    Waits(Cancel),
}

/// The client's values of a request.
struct Said<'a> {
    id: &'a str,
    sequence: &'a Sequence,
    parameters: &'a Parameters,
}

impl RequestObject {
    /// The request of a job, for a run that began at `times`. `None` if there were no handles for it. Then its client
    /// got an error.
    pub fn new(mut job: Job, model: &ModelObject, counted: Counted, times: Times) -> Option<RequestObject> {
        let wanted = job.own_wanted().map(|name| model.c_name(name)).collect();
        // This state is replaced below.
        let way = Way::Waits(job.cancel().clone());
        let said = Said { id: job.id(), sequence: job.sequence(), parameters: job.parameters() };
        let mut request = RequestObject::of(said, job.timeout_us(), wanted, way, model);
        let of_policies = job.responder().policy_data().to_vec();
        let mut tensors = job.take_inputs();
        if let Err(fault) = request.add(tensors.drain(..), &of_policies, model) {
            job.refuse(fault.into_status("TRITONBACKEND_ModelInstanceExecute"));
            return None;
        }
        let owner = Arc::clone(&model.backend.owner);
        let path = ResponsePath::new(job, counted, owner, request.config.decoupled(), times);
        request.way = Way::Runs(Arc::new(path));
        Some(request)
    }

    /// A waiting request, for a batching strategy to read.
    pub fn waiting(waiting: &WaitingRequest, model: &ModelObject) -> Result<RequestObject, Fault> {
        let wanted = waiting.wanted.iter().map(|name| model.c_name(name)).collect();
        let way = Way::Waits(waiting.cancel.clone());
        let WaitingRequest { id, sequence, parameters, timeout_us, .. } = waiting;
        let mut request = RequestObject::of(Said { id, sequence, parameters }, *timeout_us, wanted, way, model);
        request.add(waiting.inputs.iter().cloned(), &[], model)?;
        Ok(request)
    }

    /// A request without its inputs.
    fn of(said: Said<'_>, timeout_us: u64, wanted: Names, way: Way, model: &ModelObject) -> RequestObject {
        let sequence = said.sequence.clone();
        let sequence_text = match &sequence.id {
            SequenceId::Text(text) => c_cow(text),
            _ => Cow::Borrowed(c""),
        };
        RequestObject {
            id: c_cow(said.id),
            sequence,
            sequence_text,
            timeout_us,
            parameters: said.parameters.iter().map(|(key, value)| (c_text(key), Value::from(value))).collect(),
            inputs: SmallVec::new(),
            wanted,
            way,
            config: model.config(),
            version: model.version,
            states: Mutex::default(),
        }
    }

    fn add(
        &mut self,
        tensors: impl IntoIterator<Item = Tensor, IntoIter: ExactSizeIterator>,
        of_policies: &[PolicyData],
        model: &ModelObject,
    ) -> Result<(), Fault> {
        let tensors = tensors.into_iter();
        self.inputs.reserve_exact(tensors.len());
        for tensor in tensors {
            let input = Arc::new(InputObject::new(model.c_name(&tensor.name), tensor, of_policies));
            self.inputs.push((Handle::to(Arc::clone(&input))?, input));
        }
        Ok(())
    }

    /// The path of its responses.
    pub fn path(&self) -> Result<&Arc<ResponsePath>, Fault> {
        match &self.way {
            Way::Runs(path) => Ok(path),
            Way::Waits(_) => Err(Fault::misuse(
                "the request waits for its batch: a batching strategy may look at it and do nothing else",
            )),
        }
    }

    /// Whether its client has cancelled it.
    pub fn is_cancelled(&self) -> bool {
        match &self.way {
            Way::Runs(path) => path.cancel.is_cancelled(),
            Way::Waits(cancel) => cancel.is_cancelled(),
        }
    }

    /// Makes the next state in place of the state whose output has this name.
    pub fn state(&self, name: String, datatype: DataType, shape: Shape) -> Result<Handle<StateObject>, Fault> {
        let known = self.config.sequence_batching().map_or(&[][..], |batching| &batching.state);
        if known.is_empty() {
            let model = &self.config.name;
            let why = format!("unable to add state '{name}'. State configuration is missing for model '{model}'.");
            return Err(Status::invalid(why).into());
        }
        let Some(spec) = known.iter().find(|state| state.output_name == name) else {
            return Err(Status::invalid(format!("state '{name}' is not a valid state name.")).into());
        };
        let inputs = spec.use_same_buffer_for_input_output.then_some(&self.inputs);
        let before = inputs.and_then(|inputs| inputs.iter().find(|(_, input)| *input.tensor.name == *spec.input_name));
        let before = before.map(|(_, input)| input.tensor.data.clone());
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        if states.len() >= OUTPUTS_MAX {
            return Err(Fault::misuse(format!("a request has at most {OUTPUTS_MAX} states")));
        }
        let state = StateObject::new(Arc::clone(self.path()?), name, datatype, shape, before);
        let handle = Handle::to(Arc::new(state))?;
        states.push(handle);
        Ok(handle)
    }

    /// The trace of the request; NULL if it has none.
    pub fn trace(&self) -> Result<Handle<TraceObject>, Fault> {
        self.path()?.trace(|| TraceOf {
            model: c_text(&self.config.name),
            version: self.version as i64,
            request_id: self.id.clone().into_owned(),
        })
    }

    /// Returns the request, to run again as the next one of its sequence.
    pub fn reschedule(&self) -> Result<(), Fault> {
        self.path()?.reschedule(self.inputs.iter().map(|(_, input)| input.tensor.clone()).collect())
    }
}

impl Drop for RequestObject {
    fn drop(&mut self) {
        for (handle, _) in self.inputs.drain(..) {
            // The request owns its inputs, so they were not deleted before.
            drop(handle.take());
        }
        for handle in self.states.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // It owns its states too.
            drop(handle.take());
        }
    }
}
