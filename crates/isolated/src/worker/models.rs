//! How does an engine in a child call, load and unload other models of its server?

use std::sync::mpsc::Receiver;
use std::sync::{Arc, PoisonError};
use std::thread;

use nerite_backend::{Infer, ModelsDone, RequestingModel};
use nerite_config::{ModelConfig, from_json};
use nerite_locks::Mutex;
use nerite_memory::{Buffer, Reason, Slot};
use nerite_process::limits::TENSOR_ALIGN;
use nerite_process::packets::{
    Cancelling, Command, ConfigCall, InferCall, LoadCall, SegmentOffset, SpaceCall, Taken, TensorAt, UnloadCall,
};
use nerite_request::setting::LoadOptions;
use nerite_request::{
    Cancel, InferResponse, Inputs, Output, Outputs, Parameters, Recycled, Reply, Request, Response, Sequence, Status,
};
use nerite_tensor::Tensor;

use super::calls::{CallAnswer, Calls, wait};
use super::memory::{buffer, slot};
use super::server_channel::{OutputSpace, ServerChannel};

/// The models of the server, through the channel for calls.
pub(super) struct ServerModels(Arc<ModelCalls>);

/// The calls to these models.
struct ModelCalls {
    server: Arc<ServerChannel>,
    calls: Arc<Calls>,
}

/// A request, without its reply.
struct NestedRequest {
    model: String,
    version: Option<i64>,
    id: String,
    inputs: Inputs,
    wanted: Vec<String>,
    timeout_us: u64,
    priority: u64,
    sequence: Sequence,
    parameters: Parameters,
    cancel: Cancel,
}

impl ServerModels {
    pub(super) fn new(server: &Arc<ServerChannel>, calls: &Arc<Calls>) -> ServerModels {
        ServerModels(Arc::new(ModelCalls { server: Arc::clone(server), calls: Arc::clone(calls) }))
    }
}

impl ModelCalls {
    /// Memory for this many bytes that the server shares.
    fn space(&self, bytes: usize) -> Result<(SegmentOffset, Slot), Status> {
        let answer = wait(&self.calls.send(|call| SpaceCall { call, bytes }.to_string())?)?;
        if let Some(status) = answer.failure() {
            return Err(status);
        }
        let OutputSpace { location, .. } = OutputSpace::read(&answer, bytes)?;
        Ok((location, slot(&self.server.memory().get(location.segment, true)?, location.offset, bytes)?))
    }

    /// The location of each input in memory that the server shares. Inputs that lie elsewhere are copied to such memory. With `copies_all` all inputs
    /// are copied, because the server does not know the memory that they lie in.
    fn locations(&self, inputs: &[Tensor], copies_all: bool) -> Result<Vec<Option<SegmentOffset>>, Status> {
        let known = |input: &Tensor| if copies_all { None } else { self.server.memory().location_of(&input.data) };
        let mut locations: Vec<_> = inputs.iter().map(known).collect();
        let is_copied =
            |(location, input): &(&Option<SegmentOffset>, &Tensor)| location.is_none() && !input.data.is_empty();
        let sizes = locations.iter().zip(inputs).filter(is_copied).map(|(_, input)| input.data.len());
        let bytes: usize = sizes.map(|bytes| bytes.next_multiple_of(TENSOR_ALIGN)).sum();
        if bytes == 0 {
            return Ok(locations);
        }
        let (base, mut slot) = self.space(bytes)?;
        let mut at = 0;
        for (location, input) in
            locations.iter_mut().zip(inputs).filter(|(location, input)| location.is_none() && !input.data.is_empty())
        {
            let copied = slot.fill_from(at, &input.data, Reason::ModelProcess);
            copied.map_err(|error| Status::internal(format!("input '{}': {error}", input.name)))?;
            *location = Some(SegmentOffset { offset: base.offset + at, ..base });
            at += input.data.len().next_multiple_of(TENSOR_ALIGN);
        }
        Ok(locations)
    }

    /// Sends a request. Returns its number, and its responses.
    fn send(&self, request: &NestedRequest, copies_all: bool) -> Result<(u64, Receiver<CallAnswer>), Status> {
        let locations = self.locations(&request.inputs, copies_all)?;
        let inputs: Vec<_> = request.inputs.iter().zip(locations).map(tensor_at).collect();
        let NestedRequest { model, version, id, wanted, sequence, parameters, .. } = request;
        let (version, timeout_us, priority) = (version.unwrap_or(-1), request.timeout_us, request.priority);
        self.calls.send_each(|call| {
            let inputs = &inputs;
            InferCall { call, model, version, id, sequence, timeout_us, priority, parameters, inputs, wanted }
                .to_string()
        })
    }

    /// Passes the responses on, until the last.
    fn answer(&self, request: &NestedRequest, reply: &mut Reply) -> Result<(), Status> {
        let (mut call, mut responses) = self.send(request, false)?;
        loop {
            self.end_with(request, call);
            let mut said = wait(&responses)?;
            if said.is_unknown() {
                (call, responses) = self.send(request, true)?;
                continue;
            }
            loop {
                let is_last = said.is_final();
                let (response, segments) = self.response(&said, is_last);
                reply.send(response);
                // The server may reuse this memory, because the engine has copied the tensors that it keeps.
                let _ = self.calls.send_unanswered(&Taken { call, let_go: &segments }.to_string());
                if is_last {
                    return Ok(());
                }
                said = wait(&responses)?;
            }
        }
    }

    /// Notifies the server when the request is cancelled.
    fn end_with(&self, request: &NestedRequest, call: u64) {
        let calls = Arc::clone(&self.calls);
        let send_unanswered = move || drop(calls.send_unanswered(&Cancelling(call).to_string()));
        if !request.cancel.on_cancelled(send_unanswered) {
            let _ = self.calls.send_unanswered(&Cancelling(call).to_string());
        }
    }

    /// A response, and the memory that it lies in.
    fn response(&self, said: &Command, is_last: bool) -> (Response, Vec<u64>) {
        let mut segments = Vec::new();
        let Some(outputs) = said.response_outputs() else {
            let response = match said.response_failure() {
                Some(error) if is_last => Response::failed(error),
                Some(error) => Response::failed_part(error),
                None if is_last => Response::End,
                None => Response::failed_part(Status::internal("the server sent a response that is none")),
            };
            return (response, segments);
        };
        let output = |(index, read): (usize, Option<TensorAt<'_>>)| {
            let TensorAt { name, datatype, shape, location, bytes } =
                read.ok_or_else(|| Status::internal("the server told of an output in words that make no sense"))?;
            let data = match location {
                None => Buffer::empty(),
                Some(location) => {
                    segments.push(location.segment);
                    buffer(&self.server.memory().get(location.segment, true)?, location.offset, bytes)?
                }
            };
            Ok(Output { index, name: name.into(), datatype, shape, data, placed: false })
        };
        let outputs: Result<Outputs, Status> = outputs.enumerate().map(output).collect();
        let (model, version) = said.response_model();
        let response = outputs.map(|outputs| InferResponse {
            model: model.into(),
            version: version.into(),
            parameters: said.response_parameters(),
            outputs,
            ..InferResponse::default()
        });
        let response = response.map(Recycled::from);
        let response = match (response, is_last) {
            (Ok(response), true) => Response::Final(response),
            (Ok(response), false) => Response::Part(response),
            (Err(error), true) => Response::failed(error),
            (Err(error), false) => Response::failed_part(error),
        };
        (response, segments)
    }

    /// Waits for an answer that says only that the call succeeded or failed.
    fn done(answer: Result<Receiver<CallAnswer>, Status>) -> Result<(), Status> {
        let answer = wait(&answer?)?;
        answer.failure().map_or(Ok(()), Err)
    }

    fn load(&self, model: &str, options: &LoadOptions) -> Result<(), Status> {
        let mut files = Vec::new();
        for (path, content) in &options.files {
            let mut bytes = Vec::new();
            let failed = |why: String| Status::internal(format!("file '{path}' of model '{model}': {why}"));
            content.write_to(&mut bytes).map_err(|error| failed(error.to_string()))?;
            let (location, len) = match bytes.len() {
                0 => (SegmentOffset { segment: 0, offset: 0 }, 0),
                len => {
                    let (location, mut slot) = self.space(len)?;
                    slot.write(0, &bytes, Reason::Model).map_err(|error| failed(error.to_string()))?;
                    (location, len)
                }
            };
            files.push((path.as_str(), location, len));
        }
        let config = options.config.as_deref().unwrap_or_default();
        ModelCalls::done(self.calls.send(|call| LoadCall { call, model, config, files: &files }.to_string()))
    }
}

fn tensor_at((input, location): (&Tensor, Option<SegmentOffset>)) -> TensorAt<'_, &[i64]> {
    let Tensor { name, datatype, shape, data } = input;
    TensorAt { name, datatype: *datatype, shape: shape.as_slice(), location, bytes: data.len() }
}

impl Infer for ServerModels {
    /// Each request has a thread that passes its responses on, because a response may call functions of a backend that wait for other requests.
    fn infer(&self, model: &str, version: Option<i64>, request: Request) {
        // The server knows for which client the process works.
        let Request { id, inputs, wanted, timeout_us, priority, sequence, client: _, parameters, cancel, reply } =
            request;
        let wanted = wanted.iter().map(|wanted| wanted.name.to_string()).collect();
        let (model, id) = (model.to_owned(), id.to_string());
        let request =
            NestedRequest { model, version, id, inputs, wanted, timeout_us, priority, sequence, parameters, cancel };
        let (models, shared) = (Arc::clone(&self.0), Arc::new(Mutex::new(Some(reply))));
        let theirs = Arc::clone(&shared);
        let pass_on = move || {
            let reply = theirs.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Some(mut reply) = reply else { return };
            if let Err(status) = models.answer(&request, &mut reply) {
                reply.fail(status);
            }
        };
        let started = thread::Builder::new().name("nerite-asked".to_owned()).spawn(pass_on);
        if let Err(error) = started {
            let reply = shared.lock().unwrap_or_else(PoisonError::into_inner).take();
            let why = format!("no thread for a request to another model: {error}; raise the limit on threads");
            if let Some(mut reply) = reply {
                reply.refuse(Status::unavailable(why));
            }
        }
    }

    fn config(&self, model: &str, version: Option<i64>) -> Result<Arc<ModelConfig>, Status> {
        let version = version.unwrap_or(-1);
        let answer = wait(&self.0.calls.send(|call| ConfigCall { call, model, version }.to_string())?)?;
        if let Some(status) = answer.failure() {
            return Err(status);
        }
        let config = from_json(&answer.part("config").to_string());
        Ok(Arc::new(config.map_err(|error| Status::internal(error.to_string()))?))
    }

    fn load(&self, model: &str, options: LoadOptions, _: &RequestingModel<'_>, done: ModelsDone) {
        done(self.0.load(model, &options));
    }

    fn unload(&self, model: &str, dependents: bool, _: &RequestingModel<'_>, done: ModelsDone) {
        done(ModelCalls::done(self.0.calls.send(|call| UnloadCall { call, model, dependents }.to_string())));
    }
}
