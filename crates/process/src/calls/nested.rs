//! How does a model in its own process send requests to another model?
//!
//! Inputs in memory that the process shares with the server are not copied, for example tensors of the model's own
//! request. The process copies other inputs into memory that it asks for. For outputs it gets memory that it shares. If
//! the other model writes its outputs there, they are not copied either.

use std::collections::VecDeque;
use std::sync::Arc;

use nerite_backend::Models;
use nerite_locks::Mutex;
use nerite_memory::{Buffer, Reason, Slot};
use nerite_request::{
    Cancel, Deliver, ExactlyOne, InferResponse, Output, PlaceQuery, Recycled, Reply, Request, RequestTrace, Response,
    ResponsePermit, ResponseWindow, Status, Wanted,
};
use nerite_tensor::Tensor;

use super::inputs::part;
use super::{Calls, lock};
use crate::blocks::Block;
use crate::packets::{Answered, CallFailed, InferCallRead, MemoryFound, SegmentOffset, TensorAt, Unknown};
use crate::shares::Maps;
use crate::waits::Waiter;

/// The models that the model may use.
pub struct Callees {
    /// The models of this server.
    pub models: Models,
    /// Detects models that wait for each other.
    pub waiter: Arc<Waiter>,
}

/// A request that the process made.
#[derive(Default)]
pub(crate) struct Nested {
    model: String,
    cancel: Cancel,
    /// The permits of responses that the model has not read.
    permits: VecDeque<Arc<ResponsePermit>>,
}

impl Calls {
    /// Answers with memory for the inputs of a nested request that will follow.
    pub(crate) fn space(&self, call: u64, bytes: usize) {
        let mut maps = Maps::default();
        let found = self.process.blocks.take(bytes).and_then(|block| {
            let location = self.process.shares.location(block.buffer().share(), &mut maps);
            location
                .map(|location| (location, block))
                .ok_or_else(|| Status::unavailable("the server has no descriptor left"))
        });
        match found {
            Ok((location, block)) => {
                let place = MemoryFound { call, location, capacity: block.byte_size(), map: &maps.text }.to_string();
                lock(&self.space).insert(block.segment(), block);
                self.answer(place, maps);
            }
            Err(status) => self.answer(CallFailed { call, why: &status.message }, maps),
        }
    }

    /// Passes a request on to its model.
    pub(crate) fn infer(self: &Arc<Calls>, call: u64, call_read: InferCallRead<'_>) {
        self.batch_inputs.want();
        let mut used = Vec::new();
        let Some(inputs) = self.tensors(call_read, &mut used) else {
            return self.answer(Unknown(call), Maps::default());
        };
        // The request keeps this memory from now on.
        lock(&self.space).retain(|segment, _| !used.contains(segment));
        let Callees { models, waiter } = &self.process.callees;
        let (model, version) = (call_read.model(), call_read.version());
        let refuse = |text: String| {
            let status = Status::internal(wrapped(model, &text));
            let answer = Answered { call, response: Some(Err(&status)), is_last: true, from: None, own: &[], map: "" };
            self.answer(answer, Maps::default());
        };
        let config = models.config(model, version);
        if let (Err(unknown), false) = (&config, call_read.is_plain()) {
            return refuse(unknown.message.clone());
        }
        if config.is_ok_and(|config| config.decoupled()) && !call_read.is_decoupled() {
            return refuse(format!(
                "Model {model} is using the decoupled. The current BLS request call doesn't support models using the decoupled \
                 transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled models.'"
            ));
        }
        let nested = Nested { model: model.to_owned(), ..Nested::default() };
        let cancel = nested.cancel.clone();
        if call_read.is_waited_for() && !waiter.begin(call, self.targets(model), cancel.clone()) {
            return refuse(waits_for_itself(model));
        }
        lock(&self.nested).insert(call, nested);
        let one = (!call_read.is_decoupled()).then(ExactlyOne::default);
        let window = call_read.is_decoupled().then(ResponseWindow::new);
        let calls = Arc::clone(self);
        let trace = call_read.traced().and_then(|number| self.batch_inputs.trace(number));
        let model_name = model.to_owned();
        let is_plain = call_read.is_plain();
        let reply = Reply::through(NestedReply {
            calls,
            call,
            model: model_name,
            is_plain,
            one,
            window,
            own: Vec::new(),
            trace,
        });
        let read = call_read.request();
        let wanted = call_read.wanted().map(|name| Wanted { name: name.into(), slot: None }).collect();
        let request = Request {
            id: read.id().into(),
            timeout_us: read.timeout_us(),
            priority: call_read.priority(),
            sequence: read.sequence(),
            client: self.batch_inputs.client(),
            parameters: read.parameters(),
            cancel,
            ..Request::new(inputs, wanted, reply)
        };
        models.infer(model, version, request);
    }

    /// Notes that the model has read a response of a request with several.
    pub(crate) fn taken(&self, call: u64) {
        let permit = lock(&self.nested).get_mut(&call).and_then(|nested| nested.permits.pop_front());
        drop(permit);
    }

    /// Notes that the instance waits for a nested request from now on. It did not wait when the request began. If no answer is possible, the request
    /// is refused now: the other model may be blocked too, and not notice a cancellation.
    pub(crate) fn wait_for(&self, call: u64) {
        let found = lock(&self.nested).get(&call).map(|nested| (nested.model.clone(), nested.cancel.clone()));
        let Some((model, cancel)) = found else { return };
        let waiter = &self.process.callees.waiter;
        if waiter.begin(call, self.targets(&model), cancel.clone()) {
            if !lock(&self.nested).contains_key(&call) {
                // It was answered meanwhile.
                waiter.end(call);
            }
            return;
        }
        if lock(&self.nested).remove(&call).is_some() {
            let status = Status::internal(wrapped(&model, &waits_for_itself(&model)));
            let answer = Answered { call, response: Some(Err(&status)), is_last: true, from: None, own: &[], map: "" };
            self.answer(answer, Maps::default());
            cancel.cancel();
        }
    }

    /// Cancels a nested request.
    pub(crate) fn cancel(&self, call: u64) {
        let cancel = lock(&self.nested).get(&call).map(|nested| nested.cancel.clone());
        if let Some(cancel) = cancel {
            cancel.cancel();
        }
        let permits = lock(&self.nested).get_mut(&call).map(|nested| std::mem::take(&mut nested.permits));
        drop(permits);
    }

    /// Cancels all nested requests, because the process has ended.
    pub(crate) fn cancel_all(&self) {
        let calls: Vec<u64> = lock(&self.nested).keys().copied().collect();
        for call in calls {
            self.cancel(call);
        }
        self.process.callees.waiter.end_all();
        lock(&self.space).clear();
    }

    /// The models that must answer first: the model itself, or the steps of an ensemble.
    fn targets(&self, model: &str) -> Vec<String> {
        let (mut found, mut next) = (vec![model.to_owned()], 0);
        while let Some(model) = found.get(next) {
            next += 1;
            let Ok(config) = self.process.callees.models.config(model, None) else { continue };
            for step in config.ensemble_scheduling().map_or(&[][..], |ensemble| &ensemble.step) {
                if !found.contains(&step.model_name) {
                    found.push(step.model_name.clone());
                }
            }
        }
        found
    }

    fn tensors(&self, call_read: InferCallRead<'_>, used: &mut Vec<u64>) -> Option<Vec<Tensor>> {
        let tensor = |read: Option<TensorAt<'_>>| {
            let TensorAt { name, datatype, shape, location, bytes } = read?;
            let data = match location {
                Some(location) => {
                    used.push(location.segment);
                    self.bytes_at(location, bytes)?
                }
                None => Buffer::empty(),
            };
            Some(Tensor { name: name.into(), datatype, shape, data })
        };
        call_read.request().inputs().map(tensor).collect()
    }

    /// The bytes that the process named: in memory that it asked for, or in one of its inputs or outputs.
    pub(crate) fn bytes_at(&self, location: SegmentOffset, bytes: usize) -> Option<Buffer> {
        let of_space = lock(&self.space).get(&location.segment).map(Block::buffer);
        let of_kept = || self.process.side.kept_buffer(location.segment);
        let own = of_space.or_else(of_kept).and_then(|whole| part(&whole, location, bytes));
        own.or_else(|| self.batch_inputs.find(location, bytes))
    }

    /// Sends a response, or the end, to the process.
    fn answered(
        &self,
        reply: &mut NestedReply,
        response: Option<Result<Recycled<InferResponse>, Status>>,
        is_last: bool,
    ) {
        let (call, is_plain) = (reply.call, reply.is_plain);
        let mut own = std::mem::take(&mut reply.own);
        if !lock(&self.nested).contains_key(&call) {
            // The request was refused meanwhile.
            return;
        }
        if is_last {
            lock(&self.nested).remove(&call);
            self.process.callees.waiter.end(call);
        }
        let mut maps = Maps::default();
        let mut locations = Vec::new();
        let response = response.map(|response| {
            let response = response?;
            for output in &response.outputs {
                locations.push(self.shared(output, &mut maps, &mut own)?);
            }
            Ok(response)
        });
        let names = match &response {
            Some(Ok(response)) if is_plain => Some((response.model.clone(), response.version.clone())),
            _ => None,
        };
        let tensors: Vec<_> = match &response {
            Some(Ok(response)) => response.outputs.iter().zip(locations).map(tensor_at).collect(),
            _ => Vec::new(),
        };
        let response = response.as_ref().map(|response| match response {
            Ok(response) => Ok((&tensors[..], &response.parameters)),
            Err(status) => Err(status),
        });
        let from = names.as_ref().map(|(model, version)| (model.as_str(), version.as_str()));
        let text = Answered { call, response, is_last, from, own: &own, map: &maps.text }.to_string();
        self.answer(text, maps);
    }

    /// The segment and offset of an output in the process. The output is kept for the process.
    fn shared(&self, output: &Output, maps: &mut Maps, own: &mut Vec<u64>) -> Result<Option<SegmentOffset>, Status> {
        if output.data.is_empty() {
            return Ok(None);
        }
        let process = &self.process;
        if let Some(location) = process.shares.location(output.data.share(), maps) {
            process.side.keep_buffer(location.segment, output.data.clone());
            return Ok(Some(location));
        }
        let block = process.blocks.take(output.data.len())?;
        let location = process.shares.location(block.buffer().share(), maps);
        let slot = block.slot_of(output.data.len());
        let (Some(location), Some(mut slot)) = (location, slot) else {
            return Err(Status::unavailable("the server has no descriptor left; raise its limit on open files"));
        };
        let copied = slot.fill_from(0, &output.data, Reason::ModelProcess);
        copied.map_err(|error| Status::internal(format!("output '{}': {error}", output.name)))?;
        own.push(location.segment);
        process.side.keep(&block);
        Ok(Some(location))
    }
}

fn tensor_at((output, location): (&Output, Option<SegmentOffset>)) -> TensorAt<'_> {
    let Output { name, datatype, shape, data, .. } = output;
    TensorAt { name, datatype: *datatype, shape: shape.clone(), location, bytes: data.len() }
}

fn waits_for_itself(model: &str) -> String {
    format!(
        "model '{model}' waits for itself: every instance that could answer waits for an answer; give the models that ask each other more \
         instances (instance_group)"
    )
}

fn wrapped(model: &str, text: &str) -> String {
    format!("Model {model} - Error when running inference: {text}")
}

/// The reply of a nested request of a process.
struct NestedReply {
    calls: Arc<Calls>,
    call: u64,
    model: String,
    /// Whether the process gets the errors unchanged.
    is_plain: bool,
    /// `Some` if one response is expected.
    one: Option<ExactlyOne>,
    /// `Some` if any number of responses is expected.
    window: Option<Arc<ResponseWindow>>,
    /// Segments of the next response that no other request uses.
    own: Vec<u64>,
    /// Its trace, if it is traced.
    trace: Option<Arc<RequestTrace>>,
}

impl NestedReply {
    fn answered(&mut self, content: Option<Result<Recycled<InferResponse>, Status>>, is_last: bool) {
        let calls = Arc::clone(&self.calls);
        calls.answered(self, content, is_last);
    }
}

impl Deliver for NestedReply {
    fn deliver(&mut self, response: Response) {
        let is_last = response.is_last();
        if let Some(one) = &mut self.one {
            if let Some(outcome) = one.take(response) {
                let only = outcome.unwrap_or_else(|not_one| Err(not_one.into()));
                self.answered(Some(only), true);
            }
            return;
        }
        if let (Some(window), false) = (&self.window, is_last) {
            // All outputs count, wherever they lie, because the processes of all models share the memory for outputs.
            let permit = window.permit(response.output_bytes());
            if let Some(nested) = lock(&self.calls.nested).get_mut(&self.call) {
                nested.permits.push_back(permit);
            }
        }
        self.answered(response.into_content(), is_last);
    }

    fn refuse(&mut self, why: Status) {
        let status = if self.is_plain { why } else { Status::internal(wrapped(&self.model, &why.message)) };
        self.own.clear();
        self.answered(Some(Err(status)), true);
    }

    fn trace(&self) -> Option<Arc<RequestTrace>> {
        self.trace.clone()
    }

    fn offers_places(&self) -> bool {
        true
    }

    fn window(&self) -> Option<Arc<ResponseWindow>> {
        self.window.clone()
    }

    fn place(&mut self, query: &PlaceQuery<'_>) -> Result<Option<Slot>, Status> {
        if query.bytes == 0 {
            return Ok(None);
        }
        let block = self.calls.process.blocks.take(query.bytes)?;
        self.own.push(block.segment());
        Ok(block.slot_of(query.bytes))
    }
}

/// Nested requests by the numbers of their calls.
pub(crate) type NestedRequests = Mutex<std::collections::HashMap<u64, Nested>>;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
