//! How does a runtime read one request and answer it?

mod inputs;

use std::mem::take;
use std::sync::{Arc, Weak};

use nerite_memory::{Buffer, Filled, Place, Slot};
use nerite_request::{
    AdmittedRequest, Cancel, Client, Inputs, OutputKey, Parameters, Recycled, Reply, Sequence, SequenceId, Status,
};
use nerite_tensor::{DataType, Name, Shape, Tensor};

use crate::job_body::JobParts;
use crate::reschedule::{Own, Rest};
use crate::responder::{Again, Ended, Kept, Parts, check_memory};
use crate::staged_tensors::{StagedTensors, StagingPlan};
use crate::traced;
use crate::{DeviceAccess, EarlyEnd, InFlight, OutputPlace, Responder, Times};

/// Schedules requests again.
pub trait Reschedule: Send + Sync {
    /// Takes back a request that ran as part of a sequence. `sequence` is the number of the sequence's state.
    fn again(self: Arc<Self>, job: Job, sequence: u64);
}

/// One request that a runtime works on: its inputs, and the [`Responder`] that answers it. If it is dropped unanswered, its client gets an error.
#[derive(Debug)]
pub struct Job(Recycled<JobParts>);

impl Job {
    /// A request that is in flight and was admitted at `arrived` (ns of [`crate::now_ns`]).
    pub fn new(request: AdmittedRequest, in_flight: InFlight, arrived: u64) -> Job {
        let AdmittedRequest {
            id,
            rows,
            inputs,
            wanted,
            priority,
            timeout_us,
            sequence,
            client,
            parameters,
            cancel,
            reply,
        } = request;
        let own = Own { inputs: inputs.len(), wanted: wanted.len(), has_own_sequence: false };
        let trace = reply.trace();
        if let Some(trace) = &trace {
            traced::begin(trace, &in_flight, &id, arrived, &inputs);
        }
        let mut job = Job::of(inputs, Rest { parameters, sequence, priority, timeout_us, client, own });
        job.0.responder.begin_request(Parts { id, rows, arrived, cancel, wanted, reply, in_flight, trace });
        job
    }

    /// A job whose responder must still be set. Each part is written to the box separately. A single value with all parts would be copied to the box.
    fn of(inputs: Inputs, rest: Rest) -> Job {
        let Rest { parameters, sequence, priority, timeout_us, client, own } = rest;
        let mut parts = Recycled::<JobParts>::new();
        parts.inputs = inputs;
        (parts.parameters, parts.sequence) = (parameters, sequence);
        (parts.priority, parts.timeout_us, parts.client, parts.own) = (priority, timeout_us, client, own);
        Job(parts)
    }

    /// Separates the inputs from the responder, for runtimes that release inputs early, answer later or answer several times.
    pub fn divide(self) -> (Inputs, Responder) {
        let (inputs, mut responder) = self.part();
        responder.divide_from(&inputs);
        (inputs, responder)
    }

    /// Takes the inputs, as [`Job::divide`]. The responder stays in the job: it is large, so moving it costs time.
    pub fn take_inputs(&mut self) -> Inputs {
        let JobParts { inputs, responder, .. } = &mut *self.0;
        let inputs = take(inputs);
        responder.divide_from(&inputs);
        inputs
    }

    /// Returns the inputs that [`Job::take_inputs`] took.
    pub fn return_inputs(&mut self, inputs: Inputs) {
        self.0.inputs = inputs;
    }

    /// Gives the request back to be scheduled again, as [`Responder::reschedule`].
    pub fn reschedule(self, times: Times) {
        let (inputs, responder) = self.part();
        responder.reschedule(inputs, times);
    }

    fn part(mut self) -> (Inputs, Responder) {
        let JobParts { inputs, parameters, sequence, priority, timeout_us, client, own, responder, .. } = &mut *self.0;
        let (inputs, mut responder) = (take(inputs), take(responder));
        if let Some(again) = &mut responder.again_by {
            let (parameters, sequence) = (take(parameters), take(sequence));
            let (priority, timeout_us, client, own) = (*priority, *timeout_us, *client, *own);
            again.rest = Some(Rest { parameters, sequence, priority, timeout_us, client, own });
        }
        (inputs, responder)
    }

    /// Lets the request be scheduled again while it runs, as part of the sequence whose state has the number `number`.
    pub fn may_run_again(&mut self, whom: Weak<dyn Reschedule>, number: u64) {
        let take = move |mut rest: Rest, mut inputs: Inputs, mut responder: Responder| {
            // The number of the last run must not remain, because the next instance sets a number only if it has a device.
            responder.device = 0;
            inputs.truncate(rest.own.inputs);
            (rest.sequence.start, rest.sequence.end) = (false, false);
            let mut job = Job::of(inputs, rest);
            job.0.responder = responder;
            match whom.upgrade() {
                Some(whom) => whom.again(job, number),
                None => job.finish(Err(Status::unavailable("the model was unloaded")), Times::begin()),
            }
        };
        self.0.responder.again_by = Some(Box::new(Again { whom: Box::new(take), rest: None }));
    }

    /// Makes the request the first of a sequence that the server numbers.
    pub fn begin_own_sequence(&mut self, number: u64) {
        self.0.sequence = Sequence { id: SequenceId::Number(number), start: true, end: false };
        self.0.own.has_own_sequence = true;
    }

    /// Whether [`Job::begin_own_sequence`] was called.
    pub fn has_own_sequence(&self) -> bool {
        self.0.own.has_own_sequence
    }

    /// The responder, for reading.
    pub fn responder(&self) -> &Responder {
        &self.0.responder
    }

    /// The responder, for code that answers jobs and divided requests alike.
    pub fn responder_mut(&mut self) -> &mut Responder {
        &mut self.0.responder
    }

    /// Sets the device that the request runs on, for the meter. The devices of each model are numbered from 1.
    pub fn runs_on(&mut self, device: u8) {
        self.0.responder.device = device;
    }

    /// Makes it an error of the request if it ends and no response had an output that it placed in memory.
    pub fn require_placed(&mut self) {
        self.0.responder.require_placed();
    }

    /// Adds a tensor that the server makes, such as one that describes the sequence of the request.
    pub fn add_input(&mut self, tensor: Tensor) {
        self.0.inputs.push(tensor);
    }

    /// Adds an output that the server wants. The response carries this output. `index` is its index in the configuration. An output that is not in the
    /// configuration has an index after the configuration's outputs.
    pub fn want(&mut self, index: usize, name: &Name) {
        self.0.responder.want(index, name);
    }

    /// Sets a function that is called when the request ends, before the client gets the last response. If it returns an error, the
    /// request fails with it.
    pub fn on_end(&mut self, callback: impl FnOnce(Ended<'_>) -> Result<(), Status> + Send + 'static) {
        self.0.responder.on_end(callback);
    }

    /// Keeps a value until the request ends. The value is dropped before the last response is sent.
    pub fn keep(&mut self, what: Kept) {
        self.0.responder.keep(what);
    }

    /// A request with the same inputs whose answer is dropped, for a position of a batch that has no request.
    pub fn unanswered_copy(&self, in_flight: InFlight) -> Job {
        let request = AdmittedRequest {
            rows: self.rows(),
            inputs: self.0.inputs.clone(),
            wanted: self.responder().wanted_outputs().without_slots(),
            ..AdmittedRequest::new(Reply::closed())
        };
        Job::new(request, in_flight, self.arrived())
    }

    /// The id that the client gave the request. May be empty.
    pub fn id(&self) -> &str {
        self.0.responder.id()
    }

    /// The number of rows: the size of the batch dimension, or 1 for models without one.
    pub fn rows(&self) -> u32 {
        self.0.responder.rows()
    }

    /// Input tensors, in the order of the model's configuration. Those that the server adds come last.
    pub fn inputs(&self) -> &Inputs {
        &self.0.inputs
    }

    /// The input of this name, for code whose interface identifies inputs by name. Other code uses the index: [`Inputs::at`].
    pub fn input(&self, name: &str) -> Option<&Tensor> {
        self.0.inputs.iter().find(|input| input.name == name)
    }

    /// Parameters that the client gave for the model.
    pub fn parameters(&self) -> &Parameters {
        &self.0.parameters
    }

    /// The sequence that the request belongs to.
    pub fn sequence(&self) -> &Sequence {
        &self.0.sequence
    }

    /// When it was admitted, in ns of [`crate::now_ns`].
    pub fn arrived(&self) -> u64 {
        self.0.responder.arrived()
    }

    /// Longest time in the queue in µs, 0 for the model's default.
    pub fn timeout_us(&self) -> u64 {
        self.0.timeout_us
    }

    /// The client that sent the request.
    pub fn client(&self) -> Client {
        self.0.client
    }

    /// Priority, 0 for the model's default.
    pub fn priority(&self) -> u64 {
        self.0.priority
    }

    /// Replaces the reply by the one that `way` makes of it.
    pub fn answer_by(&mut self, way: impl FnOnce(Reply) -> Reply) {
        self.0.responder.answer_by(way);
    }

    /// As [`Responder::is_cancelled`].
    pub fn is_cancelled(&self) -> bool {
        self.0.responder.is_cancelled()
    }

    /// As [`Responder::cancel`].
    pub fn cancel(&self) -> &Cancel {
        self.0.responder.cancel()
    }

    /// As [`Responder::is_stopped`].
    pub fn is_stopped(&self) -> bool {
        self.0.responder.is_stopped()
    }

    /// As [`Responder::stop`].
    pub fn stop(&self) -> &Cancel {
        self.0.responder.stop()
    }

    /// Lets the request continue to run after its client has gone, until `end` stops it.
    pub fn end_by(&mut self, end: Arc<dyn EarlyEnd>) {
        self.0.responder.end_by(end);
    }

    /// Whether the request continues to run after its client has gone.
    pub fn outlasts_client(&self) -> bool {
        self.0.responder.outlasts_client()
    }

    /// Names of the wanted outputs.
    pub fn wanted(&self) -> impl Iterator<Item = &str> {
        self.0.responder.wanted()
    }

    /// Names of the outputs that the client wants, without the outputs that only the server wants.
    pub fn own_wanted(&self) -> impl Iterator<Item = &str> {
        self.0.responder.wanted().take(self.0.own.wanted)
    }

    /// Whether the client wants this output. Here and below, an output is identified by its index in the configuration, or by its name.
    pub fn wants(&self, output: impl OutputKey) -> bool {
        self.0.responder.wants(output)
    }

    /// As [`Responder::output_place`].
    pub fn output_place(&self, output: impl OutputKey) -> OutputPlace {
        self.0.responder.output_place(output)
    }

    /// As [`Responder::output_slot`].
    pub fn output_slot(&self, output: impl OutputKey) -> Option<&Slot> {
        self.0.responder.output_slot(output)
    }

    /// As [`Responder::may_wait`].
    pub fn may_wait(&self) -> bool {
        self.0.responder.may_wait()
    }

    /// As [`Responder::offers_places`].
    pub fn offers_places(&self) -> bool {
        self.0.responder.offers_places()
    }

    /// As [`Responder::offered`].
    pub fn offered(&mut self, output: impl OutputKey, size: usize) -> Result<Option<Slot>, Status> {
        self.0.responder.offered(output, size)
    }

    /// As [`Responder::set_parameters`].
    pub fn set_parameters(&mut self, parameters: Parameters) {
        self.0.responder.set_parameters(parameters);
    }

    /// As [`Responder::output`].
    pub fn output(&mut self, output: impl OutputKey, datatype: DataType, shape: &[i64]) -> Result<Slot, Status> {
        self.0.responder.output(output, datatype, shape)
    }

    /// As [`Responder::output_bytes`].
    pub fn output_bytes(&mut self, output: impl OutputKey, size: usize) -> Result<Slot, Status> {
        self.0.responder.output_bytes(output, size)
    }

    /// As [`Responder::output_near`].
    pub fn output_near(&mut self, output: impl OutputKey, size: usize, preferred: Place) -> Result<Slot, Status> {
        self.0.responder.output_near(output, size, preferred)
    }

    pub(crate) fn measured(&mut self, output: impl OutputKey, size: usize, preferred: Place) -> Result<Slot, Status> {
        self.0.responder.measured(output, size, preferred)
    }

    /// Whether any input lies in memory of a device that `access` does not allow, or an output is wanted there.
    pub(crate) fn needs_staging(&self, access: &DeviceAccess) -> bool {
        StagedTensors::is(&self.0.inputs, self.0.responder.wanted_outputs(), access)
    }

    /// Copies the request's tensors to this host as `plan` says. Copying began at `since`. The tensors in `brought` were copied before this call. The
    /// outputs are copied back to their devices when the request ends.
    pub(crate) fn stage_in(
        &mut self,
        since: u64,
        plan: &StagingPlan,
        brought: Vec<(usize, &Buffer)>,
    ) -> Result<(), Status> {
        if self.needs_staging(&plan.access) {
            let JobParts { inputs, responder, .. } = &mut *self.0;
            let staged = StagedTensors::take(inputs, responder.wanted_slots(), since, plan, brought)?;
            responder.staged = Some(Box::new(staged));
        }
        Ok(())
    }

    /// As [`Responder::put`].
    pub fn put(&mut self, output: impl OutputKey, datatype: DataType, shape: impl Into<Shape>, slot: Slot<Filled>) {
        self.0.responder.put(output, datatype, shape, slot);
    }

    /// As [`Responder::put_buffer`].
    pub fn put_buffer(&mut self, output: impl OutputKey, datatype: DataType, shape: impl Into<Shape>, data: Buffer) {
        self.0.responder.put_buffer(output, datatype, shape, data);
    }

    /// As [`Responder::begin`].
    pub fn begin(&self) -> Times {
        self.0.responder.begin()
    }

    /// As [`Responder::finish`].
    pub fn finish(mut self, result: Result<(), Status>, times: Times) {
        let memory = self.drop_inputs();
        self.0.responder.finish_in_place(memory.and(result), times);
    }

    /// As [`Responder::finish_from_cache`].
    pub fn finish_from_cache(self, result: Result<(), Status>, times: Times) {
        let (responder, memory) = self.release();
        responder.finish_from_cache(memory.and(result), times);
    }

    /// As [`Responder::end`].
    pub fn end(self, times: Times) {
        match self.release() {
            (responder, Ok(())) => responder.end(times),
            (responder, lost) => responder.finish(lost, times),
        }
    }

    /// As [`Responder::answer_error`].
    pub fn answer_error(self, error: Status, times: Times) {
        match self.release() {
            (responder, Ok(())) => responder.answer_error(error, times),
            (responder, lost) => responder.finish(lost, times),
        }
    }

    /// As [`Responder::refuse`].
    pub fn refuse(self, error: Status) {
        self.release().0.refuse(error);
    }

    /// As [`Responder::reject_unqueued`].
    pub fn reject_unqueued(self, error: Status) {
        self.release().0.reject_unqueued(error);
    }

    /// Checks that no memory of the inputs was lost, then drops the inputs.
    fn release(mut self) -> (Responder, Result<(), Status>) {
        let memory = self.drop_inputs();
        (take(&mut self.0.responder), memory)
    }

    /// As [`Job::release`], without moving the responder.
    fn drop_inputs(&mut self) -> Result<(), Status> {
        let inputs = take(&mut self.0.inputs);
        check_memory(inputs.iter().map(|input| &input.data))
    }
}
