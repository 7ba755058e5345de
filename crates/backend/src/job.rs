//! How does a runtime read one request and answer it?

use std::sync::Arc;

use nerite_memory::{Buffer, Filled, Place, Slot};
use nerite_request::{Cancel, Code, Output, Parameters, Reply, Request, Response, Sequence, Status, Wanted};
use nerite_tensor::{DataType, Shape, Tensor, byte_size};

use crate::output_place::too_small;
use crate::staged_tensors::{StagedTensors, StagingPlan};
use crate::{DeviceAccess, Meter, Outcome, OutputPlace, RequestTimes, Times};

/// One request in a runtime's hands. Dropped unanswered, it answers itself with an error.
#[derive(Debug)]
pub struct Job {
    request: Request,
    model: Arc<str>,
    version: Arc<str>,
    arrived: u64,
    made: Vec<Output>,
    /// What the model says beside its outputs.
    said: Parameters,
    /// What lies on devices, for a runtime that computes on the host.
    staged: Option<Box<StagedTensors>>,
}

impl Job {
    /// A request of `model`, admitted at `arrived` (ns of [`crate::now_ns`]).
    pub fn new(request: Request, model: Arc<str>, version: Arc<str>, arrived: u64) -> Job {
        Job { request, model, version, arrived, made: Vec::new(), said: Parameters::new(), staged: None }
    }

    /// The client's own name for the request; may be empty.
    pub fn id(&self) -> &str {
        &self.request.id
    }

    /// Rows in it: the batch dimension, 1 for models without one.
    pub fn rows(&self) -> u32 {
        self.request.rows
    }

    /// Input tensors, in the client's order.
    pub fn inputs(&self) -> &[Tensor] {
        &self.request.inputs
    }

    /// The input of this name.
    pub fn input(&self, name: &str) -> Option<&Tensor> {
        self.request.inputs.iter().find(|input| input.name == name)
    }

    /// Parameters the client gave for the model.
    pub fn parameters(&self) -> &Parameters {
        &self.request.parameters
    }

    /// The sequence it belongs to.
    pub fn sequence(&self) -> &Sequence {
        &self.request.sequence
    }

    /// When it was admitted, in ns of [`crate::now_ns`].
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Longest time in the queue in µs, 0 for the model's default.
    pub fn timeout_us(&self) -> u64 {
        self.request.timeout_us
    }

    /// Priority, 0 for the model's default.
    pub fn priority(&self) -> u64 {
        self.request.priority
    }

    /// Has the answer take another way, made of the client's id for the request and the present way.
    pub fn answer_by(&mut self, way: impl FnOnce(&str, Reply) -> Reply) {
        let reply = std::mem::replace(&mut self.request.reply, Reply::closed());
        self.request.reply = way(&self.request.id, reply);
    }

    /// Whether the client went away. Worth asking between long steps.
    pub fn is_cancelled(&self) -> bool {
        self.request.cancel.is_cancelled()
    }

    /// The client's flag, for a runtime whose model asks while it works.
    pub fn cancel(&self) -> &Cancel {
        &self.request.cancel
    }

    /// Names of the outputs wanted.
    pub fn wanted(&self) -> impl Iterator<Item = &str> {
        self.request.wanted.iter().map(|wanted| wanted.name.as_str())
    }

    /// Whether the client wants this output.
    pub fn wants(&self, name: &str) -> bool {
        self.request.wanted.iter().any(|wanted| wanted.name == name)
    }

    /// Where this output would go, for a runtime that can write it there itself.
    pub fn output_place(&self, name: &str) -> OutputPlace {
        let slot = self.request.wanted.iter().find(|w| w.name == name).and_then(|w| w.slot.as_ref());
        OutputPlace { place: slot.map_or(Place::Host, Slot::place), capacity: slot.map(Slot::len) }
    }

    /// The client's own place for this output, if it named one: for a runtime whose model writes there from another process.
    pub fn output_slot(&self, name: &str) -> Option<&Slot> {
        self.request.wanted.iter().find(|wanted| wanted.name == name).and_then(|wanted| wanted.slot.as_ref())
    }

    /// Whether the place of outputs that the client named no memory for depends on their size: [`Job::offered`] tells it.
    pub fn offers_places(&self) -> bool {
        self.request.reply.offers()
    }

    /// The place that is offered for `size` bytes of such an output; `None` if it may lie anywhere.
    pub fn offered(&mut self, name: &str, size: usize) -> Result<Option<Slot>, Status> {
        self.request.reply.place(name, size)
    }

    /// Whether all memory that it names is the host's: its inputs, and the places that its client chose for outputs.
    pub fn is_on_host(&self) -> bool {
        self.request.inputs.iter().all(|input| input.data.place().is_host())
            && self.request.wanted.iter().filter_map(|wanted| wanted.slot.as_ref()).all(|slot| slot.place().is_host())
    }

    /// Adds a parameter to the response that is being made.
    pub fn say(&mut self, parameters: Parameters) {
        self.said = parameters;
    }

    /// Memory for an output of a fixed-size datatype: the client's own if it named some or leaves the choice to us, else fresh.
    /// Fill it, then [`Job::put`].
    pub fn output(&mut self, name: &str, datatype: DataType, shape: &[i64]) -> Result<Slot, Status> {
        let size = byte_size(datatype, shape).map_err(|e| Status::internal(format!("output '{name}': {e}")))?;
        let size = size.ok_or_else(|| {
            Status::internal(format!("output '{name}' is BYTES: its size is known only with its elements"))
        })?;
        self.output_bytes(name, size)
    }

    /// Memory for an output of `size` bytes, as [`Job::output`]; for BYTES, whose size the shape does not tell.
    pub fn output_bytes(&mut self, name: &str, size: usize) -> Result<Slot, Status> {
        let slot = self.request.wanted.iter_mut().find(|w| w.name == name).and_then(|w| w.slot.take());
        let Some(mut slot) = slot else {
            if let Some(have) = self.away_capacity(name).filter(|have| *have < size) {
                return Err(too_small(name, have, size));
            }
            return self.measured(name, size);
        };
        if slot.len() < size {
            return Err(too_small(name, slot.len(), size));
        }
        slot.truncate(size);
        Ok(slot)
    }

    /// Memory for an output that the client named no place for: one that the reply offers, else of this process.
    pub(crate) fn measured(&mut self, name: &str, size: usize) -> Result<Slot, Status> {
        match self.request.reply.place(name, size)? {
            Some(slot) => Ok(slot),
            None => self.fresh(name, size),
        }
    }

    /// Memory of this process for an output.
    pub(crate) fn fresh(&self, name: &str, size: usize) -> Result<Slot, Status> {
        match &self.staged {
            Some(staged) if staged.capacity(name).is_some() => staged.slot(size),
            _ => Slot::try_heap(size).map_err(|refused| Status::no_memory(format_args!("output '{name}'"), refused)),
        }
    }

    fn away_capacity(&self, name: &str) -> Option<usize> {
        self.staged.as_ref()?.capacity(name)
    }

    /// Whether any of its tensors lies on a device that is out of `reach`, or is wanted there.
    pub(crate) fn is_away(&self, reach: &DeviceAccess) -> bool {
        StagedTensors::is(&self.request, reach)
    }

    /// Brings its tensors to this host as `carry` says, where that began at `since` and is done for those `brought`. Its
    /// outputs go back to their devices when it is finished.
    pub(crate) fn stage_in(
        &mut self,
        since: u64,
        carry: &StagingPlan,
        brought: Vec<(&str, &Buffer)>,
    ) -> Result<(), Status> {
        if self.is_away(&carry.reach) {
            self.staged = Some(Box::new(StagedTensors::take(&mut self.request, since, carry, brought)?));
        }
        Ok(())
    }

    /// Adds a filled output to the response that is being made. `slot` came from [`Job::output`] or [`Job::output_bytes`].
    pub fn put(&mut self, name: &str, datatype: DataType, shape: impl Into<Shape>, slot: Slot<Filled>) {
        let data = slot.into_buffer();
        // Only client memory is writable by others: what is private was made here and travels in the response.
        let placed = data.access() == nerite_memory::Access::Shared || !data.place().is_host();
        self.made.push(Output { name: name.into(), datatype, shape: shape.into(), data, placed });
    }

    /// Adds an output that stays where the runtime made it and travels in the response: for outputs the client left no place for.
    pub fn put_buffer(&mut self, name: &str, datatype: DataType, shape: impl Into<Shape>, data: Buffer) {
        self.made.push(Output { name: name.into(), datatype, shape: shape.into(), data, placed: false });
    }

    /// The times of an execution of this job, or of it and others, that begins now; bringing its tensors here was the
    /// beginning of it.
    pub fn begin(&self) -> Times {
        let now = Times::begin();
        Times { start: self.staged.as_ref().map_or(now.start, |staged| staged.since()), ..now }
    }

    /// Ends the job: tells `meter`, then sends the outputs put so far as the last response, or the error.
    pub fn finish(mut self, result: Result<(), Status>, mut times: Times, meter: &dyn Meter) {
        // A loss of memory explains whatever else went wrong.
        let mut result = self.check_memory().and(result);
        if let (Ok(()), Some(staged)) = (&result, &mut self.staged) {
            let delivered = staged.deliver(&mut self.made);
            if !matches!(delivered, Ok(false)) {
                times.ends();
            }
            result = delivered.map(drop);
        }
        let outcome = match &result {
            Ok(()) => Outcome::Success,
            Err(error) if error.code == Code::Cancelled => Outcome::Cancelled,
            Err(_) => Outcome::Failed,
        };
        self.end(result, times, outcome, meter);
    }

    /// Ends the job with an error that is the model's own answer: it ran, so it counts as a success, as in Triton.
    pub fn answer_error(self, error: Status, times: Times, meter: &dyn Meter) {
        let (result, outcome) = match self.check_memory() {
            Ok(()) => (Err(error), Outcome::Success),
            lost => (lost, Outcome::Failed),
        };
        self.end(result, times, outcome, meter);
    }

    /// Ends a job that never ran, for the reason given.
    pub fn refuse(self, error: Status, meter: &dyn Meter) {
        let outcome = if error.code == Code::Cancelled { Outcome::Cancelled } else { Outcome::Rejected };
        let times = Times::begin();
        self.end(Err(error), times, outcome, meter);
    }

    /// Ends a job that no queue took: Triton counts such requests nowhere.
    pub fn turn_away(mut self, error: Status) {
        self.request.reply.fail(error);
    }

    fn end(mut self, result: Result<(), Status>, times: Times, outcome: Outcome, meter: &dyn Meter) {
        meter.request(&RequestTimes { arrived: self.arrived, rows: self.request.rows, times }, outcome);
        let outputs = std::mem::take(&mut self.made);
        let response = Response {
            model: (*self.model).into(),
            version: (*self.version).into(),
            id: std::mem::take(&mut self.request.id),
            parameters: std::mem::take(&mut self.said),
            outputs: if result.is_ok() { outputs } else { Vec::new() },
            error: result.err(),
            last: true,
            ..Response::default()
        };
        let Request { inputs, wanted, mut reply, .. } = self.request;
        drop(self.staged);
        // Released before the answer goes out: a client may unregister its regions the moment it has the answer.
        drop((inputs, wanted));
        reply.send(response);
    }

    /// Separates what the model reads from the way back, for runtimes that release inputs early or answer later.
    pub fn split(mut self) -> (Vec<Tensor>, Vec<Wanted>, Reply) {
        if let Some(staged) = self.staged.take() {
            staged.restore(&mut self.request);
        }
        let Request { inputs, wanted, reply, .. } = self.request;
        (inputs, wanted, reply)
    }

    /// A request that touched memory which changed under it has no result, whatever the model computed.
    fn check_memory(&self) -> Result<(), Status> {
        let inputs = self.request.inputs.iter().map(|input| &input.data);
        match inputs.chain(self.made.iter().map(|output| &output.data)).find_map(Buffer::fault) {
            Some(fault) => Err(Status::invalid(fault)),
            None => Ok(()),
        }
    }
}
