//! How is one request answered, from any thread and any number of times?

mod each;
mod early_end;
mod end;
mod failure;
mod output_memory;
mod unmade;

use std::sync::Arc;

use nerite_memory::{Access, Buffer, Filled, Place, Slot};
use nerite_request::{
    Cancel, Code, InferResponse, InputMemory, Inputs, Name, Output, OutputKey, Parameters, PeerAccount, PolicyData,
    Recycle as _, Recycled, Reply, RequestTrace, Response, ResponseWindow, Status, Wanted, WantedOutputs,
};
use nerite_tensor::{DataType, Shape, Tensor};

use self::end::OnEnd;
pub use self::end::{Ended, Kept};
use self::unmade::UnmadeOutputs;
use crate::deferred_report::{DeferredReport, Noted};
use crate::outbox::LastResponse;
use crate::reschedule::{NOT_ITERATIVE, Rest};
use crate::response_times::{ResponseClock, ResponseOutcome};
use crate::staged_tensors::StagedTensors;
use crate::stop::EarlyEnd;
use crate::traced;
use crate::{InFlight, Outcome, OutputPlace, RequestTimes, Times};

/// Answers one request. It may be sent to another thread, outlive the run that it came with, and answer any number of
/// times. It keeps the model loaded meanwhile. If it is dropped before its last response, it answers with an error.
///
/// Outputs are put, then sent: [`Responder::send`] as one of several responses, [`Responder::finish`] as the last. If the client named memory for an output,
/// each response that has the output is written there, as in Triton. So a later response overwrites an earlier one. Memory that the server chooses (leases of a
/// session) is fresh for each response.
#[derive(Debug, Default)]
pub struct Responder {
    id: Name,
    rows: u32,
    arrived: u64,
    cancel: Cancel,
    /// `None` if the server ends the request as soon as its client has gone.
    early_end: Option<Arc<dyn EarlyEnd>>,
    wanted: WantedOutputs,
    /// How many outputs at the end of `wanted` are wanted only by the server.
    added: usize,
    /// The outputs that the client placed in memory and that no response has had.
    unmade: UnmadeOutputs,
    /// Slots of the client that were written and will be written again, by their position in `wanted`.
    again: Vec<(usize, Slot)>,
    /// Whether responses may follow the next one.
    is_divided: bool,
    /// Whether a response with outputs was sent.
    has_sent: bool,
    /// The response that is being made: its outputs and parameters so far.
    made: Recycled<InferResponse>,
    /// The states that the model keeps for the next request of its sequence.
    states: Vec<Tensor>,
    /// Inputs that the runtime took and whose memory may be lost, because the client can withdraw it.
    watched: Vec<Buffer>,
    /// The tensors that lie on devices, for a runtime that computes on the host.
    pub(crate) staged: Option<Box<StagedTensors>>,
    on_end: OnEnd,
    /// A value that is dropped when the request ends.
    kept: Option<Kept>,
    /// The times of its responses, if they are counted one by one.
    clock: Option<ResponseClock>,
    /// The trace of the request, if it has one.
    trace: Option<Arc<RequestTrace>>,
    /// The outcome that was reported. Set if a [`DeferredReport`] reports successes, or if [`Responder::watch_note`] was called.
    noted: Option<Arc<Noted>>,
    /// Whether it was scheduled again.
    has_run_before: bool,
    /// The device that it runs on, for the meter.
    pub(crate) device: u8,
    /// Set while the request may be scheduled again.
    pub(crate) again_by: Option<Box<Again>>,
    // The order of the fields matters: the memory above is released before the client gets the last response, and the model may be unloaded only after that.
    reply: Reply,
    in_flight: Option<InFlight>,
}

/// The parts that a responder is made of.
pub(crate) struct Parts {
    pub id: Name,
    pub rows: u32,
    pub arrived: u64,
    pub cancel: Cancel,
    pub wanted: WantedOutputs,
    pub reply: Reply,
    pub in_flight: InFlight,
    pub trace: Option<Arc<RequestTrace>>,
}

/// What a request needs to run again.
pub(crate) struct Again {
    /// Takes the request back.
    pub whom: Box<TakeAgain>,
    /// Set when inputs and responder are divided.
    pub rest: Option<Rest>,
}

/// Called with the parts of a request that is to run again.
pub(crate) type TakeAgain = dyn FnOnce(Rest, Inputs, Responder) + Send + Sync;

impl std::fmt::Debug for Again {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Again")
    }
}

impl Responder {
    /// Begins a request. The responder must be new or cleared.
    pub(crate) fn begin_request(&mut self, parts: Parts) {
        let Parts { id, rows, arrived, cancel, wanted, reply, in_flight, trace } = parts;
        (self.id, self.rows, self.arrived, self.cancel) = (id, rows, arrived, cancel);
        self.wanted = wanted;
        (self.reply, self.in_flight, self.trace) = (reply, Some(in_flight), trace);
    }

    /// Resets the responder to the state of a new one. If its request was not answered, the client gets an error.
    pub(crate) fn clear(&mut self) {
        self.answer_if_dropped();
        let Responder {
            id,
            rows,
            arrived,
            cancel,
            early_end,
            wanted,
            added,
            unmade,
            again,
            is_divided,
            has_sent,
            made,
            states,
            watched,
            staged,
            on_end,
            kept,
            clock,
            trace,
            noted,
            has_run_before,
            device,
            again_by,
            reply,
            in_flight,
        } = self;
        *id = Name::default();
        (*rows, *arrived, *added, *device) = (0, 0, 0, 0);
        (*cancel, *early_end) = (Cancel::new(), None);
        wanted.clear();
        made.clear();
        (*again, *states, *watched) = (Vec::new(), Vec::new(), Vec::new());
        *unmade = UnmadeOutputs::default();
        (*is_divided, *has_sent, *has_run_before) = (false, false, false);
        (*staged, *kept, *clock, *trace) = (None, None, None, None);
        (*noted, *again_by) = (None, None);
        *on_end = OnEnd::default();
        (*reply, *in_flight) = (Reply::closed(), None);
    }

    /// The id that the client gave the request. May be empty.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The number of rows: the size of the batch dimension, or 1 for models without one.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// When it was admitted, in ns of [`crate::now_ns`].
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Names of the wanted outputs.
    pub fn wanted(&self) -> impl Iterator<Item = &str> {
        self.wanted.iter().map(|wanted| wanted.name.as_str())
    }

    /// The wanted outputs, each with its index in the configuration and its slot.
    pub fn wanted_outputs(&self) -> &WantedOutputs {
        &self.wanted
    }

    /// The index of the output of this name, for code whose interface identifies outputs by name. `None` if the output is not wanted.
    pub fn output_index(&self, name: &str) -> Option<usize> {
        self.wanted.find(name).map(|(index, _)| index)
    }

    /// Whether the client wants this output.
    pub fn wants(&self, output: impl OutputKey) -> bool {
        output.position(&self.wanted).is_some()
    }

    /// Where this output would lie, for a runtime that can write it there itself.
    pub fn output_place(&self, output: impl OutputKey) -> OutputPlace {
        let Some((_, Wanted { name, slot })) = self.wanted.find(output) else { return OutputPlace::default() };
        let place = slot.as_ref().map(Slot::place).or_else(|| self.reply.likely_place(name));
        OutputPlace { place: place.unwrap_or_default(), capacity: slot.as_ref().map(Slot::len) }
    }

    /// The memory that the client named for this output, for a runtime whose model writes it from another process.
    pub fn output_slot(&self, output: impl OutputKey) -> Option<&Slot> {
        self.wanted.find(output)?.1.slot.as_ref()
    }

    /// Data of inputs. Each entry is for instances of one host policy.
    pub fn policy_data(&self) -> &[PolicyData] {
        self.reply.policy_data()
    }

    /// The trace of the request, if it has one.
    pub fn trace(&self) -> Option<&Arc<RequestTrace>> {
        self.trace.as_ref()
    }

    /// The account that is charged for memory that outlives the request. `None` if there is no account.
    pub fn account(&self) -> Option<PeerAccount> {
        self.reply.account()
    }

    /// Whether the request ran before, and was scheduled again.
    pub fn has_run_before(&self) -> bool {
        self.has_run_before
    }

    /// The response window of the request. A model that answers many times waits while it is full. `None` if each response is taken at once.
    pub fn window(&self) -> Option<Arc<ResponseWindow>> {
        self.reply.window()
    }

    /// Whether the responses are delivered through callbacks of other code, which may block.
    pub fn may_wait(&self) -> bool {
        self.reply.may_wait()
    }

    /// Whether the reply may offer memory for outputs without a client's slot. Which memory depends on their size: see [`Responder::offered`].
    pub fn offers_places(&self) -> bool {
        self.reply.offers_places()
    }

    /// The memory that the reply offers for `size` bytes of an output without a client's slot. `None` if the output may lie anywhere.
    pub fn offered(&mut self, output: impl OutputKey, size: usize) -> Result<Option<Slot>, Status> {
        self.offered_near(output, size, Place::Host)
    }

    /// The input memory of the model that reads this output next. `None` if it has none, or if the output must not lie there.
    pub fn input_memory(&self, output: impl OutputKey) -> Option<Arc<dyn InputMemory>> {
        self.reply.input_memory(self.wanted.find(output)?.0)
    }

    /// As [`crate::Job::want`].
    pub(crate) fn want(&mut self, index: usize, name: &Name) {
        self.wanted.push(index, Wanted { name: name.clone(), slot: None });
        self.added += 1;
    }

    /// Whether this output may lie in memory that a process still writes to. It may if another model gets it, or if only the server wants it.
    pub fn takes_shared(&self, output: impl OutputKey) -> bool {
        let is_added = |at: usize| at >= self.wanted.len() - self.added;
        self.reply.takes_shared() || output.position(&self.wanted).is_some_and(is_added)
    }

    /// As [`crate::Job::on_end`].
    pub(crate) fn on_end(&mut self, callback: impl FnOnce(Ended<'_>) -> Result<(), Status> + Send + 'static) {
        self.on_end = OnEnd::calling(callback);
    }

    /// As [`crate::Job::keep`].
    pub(crate) fn keep(&mut self, what: Kept) {
        self.kept = Some(what);
    }

    /// Keeps a tensor for the next request of the sequence, under the name of the state's output. It is kept even if this request fails.
    pub fn keep_state(&mut self, state: Tensor) {
        self.states.retain(|known| known.name != state.name);
        self.states.push(state);
    }

    /// Sets the parameters of the response that is being made.
    pub fn set_parameters(&mut self, parameters: Parameters) {
        self.made.parameters = parameters;
    }

    /// Leaves it to the caller to report a success to the meter, by the returned value. The caller may do so after the request has ended. `None` if
    /// this was called before, or if the request has ended.
    pub fn note_apart(&mut self) -> Option<DeferredReport> {
        let version = Arc::clone(self.in_flight.as_ref()?);
        let noted = self.noted.get_or_insert_default();
        let noted = noted.set_apart().then(|| Arc::clone(noted))?;
        Some(DeferredReport { version, arrived: self.arrived, rows: self.rows, device: self.device, noted })
    }

    /// The record of what is reported to the meter. It is kept only if [`Responder::note_apart`] is called.
    pub fn watch_note(&mut self) -> Arc<Noted> {
        Arc::clone(self.noted.get_or_insert_default())
    }

    /// The wanted outputs with their slots, for staging.
    pub(crate) fn wanted_slots(&mut self) -> &mut WantedOutputs {
        &mut self.wanted
    }

    /// Adds a filled output to the response that is being made. `slot` came from [`Responder::output`] or [`Responder::output_bytes`]. An output that is
    /// not wanted is dropped, here and in the functions below.
    pub fn put(&mut self, output: impl OutputKey, datatype: DataType, shape: impl Into<Shape>, slot: Slot<Filled>) {
        let data = slot.into_buffer();
        // Memory that others can write is the client's. Private memory was allocated here, and its bytes are sent in the response.
        let placed = data.access() == Access::Shared || !data.place().is_host();
        self.put_as(output, datatype, shape.into(), data, placed);
    }

    /// Adds an output that already lies in the memory that the client named.
    pub fn put_placed(&mut self, output: impl OutputKey, datatype: DataType, shape: impl Into<Shape>, data: Buffer) {
        self.put_as(output, datatype, shape.into(), data, true);
    }

    /// Adds an output that stays where the runtime made it and is sent in the response. This is for outputs for which the client named no memory.
    pub fn put_buffer(&mut self, output: impl OutputKey, datatype: DataType, shape: impl Into<Shape>, data: Buffer) {
        self.put_as(output, datatype, shape.into(), data, false);
    }

    fn put_as(&mut self, output: impl OutputKey, datatype: DataType, shape: Shape, data: Buffer, placed: bool) {
        let Some((index, wanted)) = self.wanted.find(output) else { return };
        self.made.outputs.push(Output { index, name: wanted.name.clone(), datatype, shape, data, placed });
    }

    /// The times of an execution that begins now, of this request alone or of a batch. If tensors of the request were staged, the execution began
    /// with the staging.
    pub fn begin(&self) -> Times {
        let now = Times::begin();
        Times { start: self.staged.as_ref().map_or(now.start, |staged| staged.since()), ..now }
    }

    /// Prepares for use without these inputs, which the runtime takes. Several responses may follow. Before outputs are sent, the responder checks
    /// whether memory of the inputs was lost.
    pub(crate) fn divide_from(&mut self, inputs: &[Tensor]) {
        self.is_divided = true;
        let lendable = inputs.iter().filter(|input| input.data.access() == Access::Shared);
        self.watched = lendable.map(|input| input.data.clone()).collect();
    }

    pub(crate) fn answer_by(&mut self, way: impl FnOnce(Reply) -> Reply) {
        self.reply = way(std::mem::replace(&mut self.reply, Reply::closed()));
    }

    /// Sends the outputs that were put so far. More responses follow. Fails if memory of the request was lost, or if an output could not be copied to
    /// its client's memory. The caller must then end the request with this error.
    pub fn send(&mut self) -> Result<(), Status> {
        self.check_memory()?;
        if let Some(staged) = &mut self.staged {
            staged.deliver(&mut self.made.outputs, true)?;
        }
        self.note_response(self.made_outcome());
        self.unmade.note(&self.made.outputs);
        let tensors = self.take_tensors();
        self.note_first_response();
        self.reply.send(Response::Part(tensors));
        self.restore_places();
        Ok(())
    }

    /// Sends an error instead of outputs. More responses follow.
    pub fn send_error(&mut self, error: Status) {
        self.made.outputs.clear();
        self.note_response(ResponseOutcome::Failed);
        self.reply.send(Response::failed_part(error));
        self.restore_places();
    }

    /// Ends the request: reports it to the meter, then sends the outputs that were put so far as the last response, or the error.
    pub fn finish(mut self, result: Result<(), Status>, times: Times) {
        self.finish_in_place(result, times);
    }

    /// As [`Responder::finish`], without moving the responder. The caller drops it afterwards.
    pub(crate) fn finish_in_place(&mut self, result: Result<(), Status>, times: Times) {
        self.finish_as(result, times, Outcome::Success);
    }

    /// As [`Responder::finish`], with outputs that were kept from an earlier request.
    pub fn finish_from_cache(mut self, result: Result<(), Status>, mut times: Times) {
        times.mark_end();
        self.finish_as(result, times, Outcome::FromCache);
    }

    /// Checks whether [`Responder::reschedule`] may be called, for a runtime whose model must know this in advance.
    pub fn check_reschedule(&self) -> Result<(), Status> {
        if self.again_by.is_some() { Ok(()) } else { Err(Status::invalid(NOT_ITERATIVE)) }
    }

    /// Returns the request, to run again as the next one of its sequence. The client keeps waiting. `inputs` are those that came with the request.
    /// This works only while the instance runs the request, and only for a model with iterative sequences. Otherwise the request ends with an error.
    /// Outputs that were put and not sent are dropped.
    pub fn reschedule(mut self, inputs: Inputs, times: Times) {
        let again = self.again_by.take().and_then(|again| Some((again.whom, again.rest?)));
        let Some((whom, rest)) = again else {
            return self.finish(Err(Status::internal(NOT_ITERATIVE)), times);
        };
        if let Err(lost) = check_memory(inputs.iter().map(|input| &input.data)).and(self.check_memory()) {
            return self.finish(Err(lost), times);
        }
        let ended = self.ended(false);
        if let Err(status) = self.on_end.call(ended) {
            return self.finish(Err(status), times);
        }
        self.made.clear();
        self.watched = Vec::new();
        self.restore_places();
        (self.is_divided, self.has_run_before) = (false, true);
        self.wanted.truncate(rest.own.wanted);
        self.added = 0;
        whom(rest, inputs, self);
    }

    fn finish_as(&mut self, result: Result<(), Status>, mut times: Times, success: Outcome) {
        // If memory was lost, that is the cause of any other error.
        let mut result = self.check_memory().and(result);
        if let (Ok(()), Some(staged)) = (&result, &mut self.staged) {
            let delivered = staged.deliver(&mut self.made.outputs, false);
            if !matches!(delivered, Ok(false)) {
                times.mark_end();
            }
            result = delivered.map(drop);
        }
        self.unmade.note(&self.made.outputs);
        result = result.and_then(|()| self.check_made());
        if result.is_ok() {
            // The callback is called before the outcome is reported, because the request may fail here.
            let states = std::mem::take(&mut self.states);
            let ended = Ended { outputs: Some(&mut self.made.outputs), states, is_cut_short: false };
            result = self.on_end.call(ended);
        }
        let outcome = match &result {
            Ok(()) => success,
            Err(error) if error.code == Code::Cancelled || self.cancel.has_timed_out() => Outcome::Cancelled,
            Err(_) => Outcome::Failed,
        };
        self.note(times, outcome);
        self.note_response(match outcome {
            Outcome::Success | Outcome::FromCache => self.made_outcome(),
            Outcome::Cancelled => ResponseOutcome::Cancelled,
            Outcome::Failed | Outcome::FailedElsewhere | Outcome::Rejected => ResponseOutcome::Failed,
        });
        let last = match result {
            Ok(()) => {
                self.note_first_response();
                Response::Final(self.take_tensors())
            }
            Err(error) => Response::failed(self.explained(error)),
        };
        self.close(last);
    }

    /// Ends the request without another response.
    pub fn end(mut self, times: Times) {
        if let Err(error) = self.check_memory().and_then(|()| self.check_made()) {
            return self.finish(Err(error), times);
        }
        let ended = self.ended(false);
        if let Err(status) = self.on_end.call(ended) {
            return self.finish(Err(status), times);
        }
        self.note(times, Outcome::Success);
        self.note_response(ResponseOutcome::Empty);
        self.close(Response::End);
    }

    /// Ends a request that never ran, with this error.
    pub fn refuse(mut self, error: Status) {
        let error = self.explained(error);
        self.note(Times::begin(), if error.code == Code::Cancelled { Outcome::Cancelled } else { Outcome::Rejected });
        self.close(Response::failed(error));
    }

    /// The error that the client gets. If the request has timed out, that is the cause of any other error.
    fn explained(&self, error: Status) -> Status {
        if self.cancel.has_timed_out() { Status::timed_out() } else { error }
    }

    /// Ends a request that was not queued. As in Triton, no statistics count it.
    pub fn reject_unqueued(mut self, error: Status) {
        self.close_by(Response::failed(error), |reply, response| match response {
            Response::Failed { error, .. } => reply.refuse(error),
            other => reply.send(other),
        });
    }

    /// Makes the slots that were written available to the next response.
    fn restore_places(&mut self) {
        for (at, slot) in self.again.drain(..) {
            if let Some(wanted) = self.wanted.at_mut(at) {
                wanted.slot = Some(slot);
            }
        }
    }

    fn note(&mut self, times: Times, outcome: Outcome) {
        self.reply.waited(times.start.saturating_sub(self.arrived));
        if let Some(trace) = &self.trace {
            traced::ran(trace, &times, outcome);
        }
        if let Some(noted) = self.noted.as_ref().filter(|noted| noted.is_apart())
            // A `DeferredReport` reports the success, and may have done so before this failure.
            && (outcome == Outcome::Success || !noted.is_first(outcome))
        {
            return;
        }
        if let Some(in_flight) = &self.in_flight {
            let Responder { arrived, rows, device, .. } = *self;
            in_flight.meter().request(&RequestTimes { arrived, rows, times, device }, outcome);
        }
    }

    fn note_first_response(&mut self) {
        if let Some(in_flight) = self.in_flight.as_ref().filter(|_| !self.has_sent) {
            in_flight.meter().first_response(self.arrived, self.device);
        }
        self.has_sent = true;
    }

    fn take_tensors(&mut self) -> Recycled<InferResponse> {
        if let Some(trace) = &self.trace {
            traced::outputs(trace, &self.made.outputs);
        }
        let mut made = std::mem::take(&mut self.made);
        if let Some(in_flight) = &self.in_flight {
            in_flight.declared().check(in_flight.name(), &made.outputs);
            (made.model, made.version) = (in_flight.name().clone(), in_flight.version().clone());
        }
        made.id = self.id.clone();
        made
    }

    /// Sends the last response.
    fn close(&mut self, response: Response) {
        self.close_by(response, Reply::send);
    }

    fn close_by(&mut self, response: Response, send: fn(&mut Reply, Response)) {
        // If the request succeeded, the callback was called before its outcome was noted. Here it has failed, so an
        // error of the callback changes nothing.
        let is_cut_short = matches!(response, Response::Failed { .. }) && self.is_stopped();
        let ended = self.ended(is_cut_short);
        let _ = self.on_end.call(ended);
        // The memory is released before the answer is sent, because a client may unregister its regions as soon as it has the answer.
        self.wanted = WantedOutputs::default();
        self.made.clear();
        (self.again, self.watched) = (Vec::new(), Vec::new());
        (self.staged, self.kept) = (None, None);
        if let Some(trace) = self.trace.take() {
            traced::end(&trace);
        }
        let reply = std::mem::replace(&mut self.reply, Reply::closed());
        if let Some(in_flight) = self.in_flight.take() {
            LastResponse { reply, response, send, in_flight }.post();
        }
    }

    /// Answers with an error if the request was not answered.
    fn answer_if_dropped(&mut self) {
        if self.in_flight.is_some() {
            self.close(Response::failed(self.explained(Reply::lost())));
        }
    }

    /// Fails if memory of the request was lost. Whatever the model computed is not valid then.
    fn check_memory(&self) -> Result<(), Status> {
        check_memory(self.watched.iter().chain(self.made.outputs.iter().map(|output| &output.data)))
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.answer_if_dropped();
    }
}

/// Fails if the memory of any of these buffers was lost.
pub(crate) fn check_memory<'b>(mut buffers: impl Iterator<Item = &'b Buffer>) -> Result<(), Status> {
    match buffers.find_map(Buffer::fault) {
        Some(fault) => Err(Status::invalid(fault)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
