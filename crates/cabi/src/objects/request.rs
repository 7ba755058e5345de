//! What does the handle of a request stand for?

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString};
use std::sync::Arc;

use nerite_backend::{DeferredReport, Job, Times};
use nerite_config::ModelConfig;
use nerite_request::{PolicyData, Sequence, SequenceId, Status};
use nerite_tensor::{DataType, Name, Shape, Tensor};
use smallvec::SmallVec;

use super::{
    Counted, Factory, InputObject, ModelObject, Outstanding, ResponsePath, StateObject, TraceObject, TraceOf, Value,
    c_cow, c_text, object, request_prefix,
};
use crate::fault::Fault;
use crate::limits::OUTPUTS_MAX;
use crate::table::{Handle, Object};

/// `TRITONBACKEND_Request`. It holds the inputs until it is released.
pub struct RequestObject {
    /// What its client set.
    pub client: ClientValues,
    /// The inputs, in the order of the model's configuration.
    pub inputs: RequestInputs,
    /// Names of the requested outputs.
    pub wanted: Names,
    /// The path of its responses.
    pub path: Arc<ResponsePath>,
    note: Cell<Option<DeferredReport>>,
    config: Arc<ModelConfig>,
    version: u64,
    /// The states that it keeps for the next request of its sequence.
    states: RefCell<Vec<Handle<StateObject>>>,
}

object!(RequestObject, 12, "request", Box<RequestObject>);

/// Names of outputs. Up to two need no allocation.
type Names = SmallVec<[Arc<CStr>; 2]>;

/// The client's values of a request.
pub struct ClientValues {
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
}

impl ClientValues {
    fn of(job: &Job) -> ClientValues {
        let sequence = job.sequence().clone();
        let sequence_text = match &sequence.id {
            SequenceId::Text(text) => c_cow(text),
            _ => Cow::Borrowed(c""),
        };
        let parameters = job.parameters().iter().map(|(key, value)| (c_text(key), Value::from(value))).collect();
        ClientValues { id: c_cow(job.id()), sequence, sequence_text, timeout_us: job.timeout_us(), parameters }
    }
}

/// Names and handles of a request's inputs. The inputs are deleted with it.
pub struct RequestInputs(SmallVec<[(Name, Handle<InputObject>); 2]>);

impl RequestInputs {
    fn new(
        tensors: impl ExactSizeIterator<Item = Tensor>,
        of_policies: &[PolicyData],
        model: &ModelObject,
    ) -> Result<RequestInputs, Fault> {
        let mut inputs = RequestInputs(SmallVec::with_capacity(tensors.len()));
        for tensor in tensors {
            let (name, c_name) = (tensor.name.clone(), model.c_name(&tensor.name));
            inputs.0.push((name, Handle::to(Box::new(InputObject::new(c_name, tensor, of_policies)))?));
        }
        Ok(inputs)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The input at this index.
    pub fn at(&self, index: u32) -> Option<Handle<InputObject>> {
        self.0.get(index as usize).map(|(_, input)| *input)
    }

    /// The input of this name. No input is locked for the search.
    pub fn named(&self, name: &str) -> Option<Handle<InputObject>> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, input)| *input)
    }

    /// The tensors.
    pub fn tensors(&self) -> Result<Vec<Tensor>, Fault> {
        self.0.iter().map(|(_, input)| input.with(|input| Ok(input.tensor.clone()))).collect()
    }
}

impl Drop for RequestInputs {
    fn drop(&mut self) {
        for (_, input) in self.0.drain(..) {
            // The request owns its inputs, so they were not deleted before.
            drop(input.take());
        }
    }
}

/// The texts for the log about the requests that a backend has not released, if they are counted in `outstanding` and were not answered completely.
pub fn kept_of(outstanding: &Arc<Outstanding>) -> Vec<String> {
    let mut paths = Vec::new();
    RequestObject::table().each(|request| paths.push(Arc::clone(&request.path)));
    // A released request may still be answered through a factory.
    Factory::table().each(|factory| paths.push(Arc::clone(&factory.path)));
    paths.sort_by_key(Arc::as_ptr);
    paths.dedup_by_key(|path| Arc::as_ptr(path));
    paths.iter().filter_map(|path| path.describe_if_unanswered(outstanding)).collect()
}

impl RequestObject {
    /// The request of a job, for a run that began at `times`. `None` if there were no handles for it. Then its client
    /// got an error.
    pub fn new(mut job: Job, model: &ModelObject, counted: Counted, times: Times) -> Option<RequestObject> {
        let of_policies = job.responder().policy_data().to_vec();
        let mut tensors = job.take_inputs();
        let inputs = match RequestInputs::new(tensors.drain(), &of_policies, model) {
            Ok(inputs) => inputs,
            Err(fault) => {
                job.refuse(fault.into_status("TRITONBACKEND_ModelInstanceExecute"));
                return None;
            }
        };
        let wanted = job.own_wanted().map(|name| model.c_name(name)).collect();
        let client = ClientValues::of(&job);
        let note = job.responder_mut().note_apart();
        let config = model.config();
        let path = ResponsePath::new(job, counted, Arc::clone(&model.backend.owner), Arc::clone(&config), times);
        Some(RequestObject {
            client,
            inputs,
            wanted,
            path: Arc::new(path),
            note: Cell::new(note),
            config,
            version: model.version,
            states: RefCell::default(),
        })
    }

    /// `[request id: x] `, with which Triton begins the texts of its errors about a request.
    pub fn prefix(&self) -> String {
        request_prefix(&self.client.id)
    }

    /// An error about it, with the prefix.
    pub fn invalid(&self, text: &str) -> Fault {
        Status::invalid(format!("{}{text}", self.prefix())).into()
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
        let before = inputs.and_then(|inputs| inputs.named(&spec.input_name));
        let before = before.map(|input| input.with(|input| Ok(input.tensor.data.clone()))).transpose()?;
        let mut states = self.states.borrow_mut();
        if states.len() >= OUTPUTS_MAX {
            return Err(Fault::misuse(format!("a request has at most {OUTPUTS_MAX} states")));
        }
        let state = StateObject::new(Arc::clone(&self.path), name, datatype, shape, before);
        let handle = Handle::to(Arc::new(state))?;
        states.push(handle);
        Ok(handle)
    }

    /// The trace of the request; NULL if it has none.
    pub fn trace(&self) -> Result<Handle<TraceObject>, Fault> {
        self.path.trace(|| TraceOf {
            model: c_text(&self.config.name),
            version: self.version as i64,
            request_id: self.client.id.clone().into_owned(),
        })
    }

    /// The right to report to the statistics. `None` if it was taken before.
    pub fn take_note(&self) -> Option<DeferredReport> {
        self.note.take()
    }
}

impl Drop for RequestObject {
    fn drop(&mut self) {
        for handle in self.states.get_mut().drain(..) {
            // The request owns its states, so they were not deleted before.
            drop(handle.take());
        }
    }
}
