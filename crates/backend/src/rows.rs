//! How are the rows of several requests joined into one execution, and its results divided again?
//!
//! ```text
//!   job 0: 2 rows ─┐                  ┌─► job 0: rows 0..2
//!   job 1: 1 row  ─┼─► Work: 4 rows ──┼─► job 1: row  2
//!   job 2: 1 row  ─┘     Execute      └─► job 2: row  3
//! ```
//! Bytes are copied only if necessary. Inputs that lie end to end in one region are used in place. Outputs that lie end to end in one region are
//! computed there ([`in_place`]). Outputs that are sent in a response are slices of the whole output. Rows on a device are joined and divided there
//! ([`on_device`]).

mod apart;
mod device_blocks;
mod fit;
mod gather;
mod in_place;
mod on_device;
mod padded;
mod ragged;

use std::time::Duration;

use nerite_memory::{Buffer, GrowableBuffer, MemoryReservation, NoMemory, Number, Place, Reason, Slot};
use nerite_request::{Code, OutputKey, Status, Wanted, WantedOutputs};
use nerite_tensor::{DataType, Shape, Tensor, byte_size, element_count, strings};
use smallvec::{SmallVec, smallvec};

use crate::{Batch, Instance, Job, Jobs, Meter, OutputPlace, StopGuard, Times};
use apart::{Made, Whole};
use device_blocks::DeviceBlocks;
use fit::{BatchInputs, fit};
use gather::gather;
use on_device::Unread;
pub use ragged::Ragged;

/// For fewer strings than this, memory for their ends is allocated without a memory reservation.
const ROOM_ELEMENTS_MIN: usize = 64 << 10;

/// A runtime that computes whole tensors at once.
pub trait Execute: Send {
    /// Computes the outputs that `work` wants. Marks on `times` when the inputs were ready and the model's work was done.
    fn execute(&mut self, work: &mut Work<'_>, times: &mut Times) -> Result<(), Status>;
}

/// How each job of an execution ended.
type Outcomes = SmallVec<[Result<(), Status>; 1]>;

/// An [`Execute`] as an [`Instance`]. Each execution runs as many jobs as may share it. The jobs are answered in order.
pub struct Joined<E> {
    engine: E,
    batching: bool,
    ragged: Ragged,
    blocks: DeviceBlocks,
    /// Whether this run is known to be quick, so that stopping it early would save nothing.
    is_brief: bool,
}

impl<E: Execute> Joined<E> {
    /// `batching` says whether the first dimension of every tensor counts rows, so that jobs may share an execution.
    pub fn new(engine: E, batching: bool) -> Joined<E> {
        Joined { engine, batching, ragged: Ragged::default(), blocks: DeviceBlocks::default(), is_brief: false }
    }

    /// The same instance, for a model that takes requests of unequal shapes.
    pub fn with_ragged(self, ragged: Ragged) -> Joined<E> {
        Joined { ragged, ..self }
    }

    fn run_together(&mut self, mut jobs: Jobs, meter: &dyn Meter) {
        let mut times = jobs.iter().map(Job::begin).min_by_key(|times| times.start).unwrap_or_else(Times::begin);
        let Ok(mut unread) = on_device::gather(&mut jobs, &mut self.blocks) else {
            // There is no memory to gather the inputs. But each job can run alone, with its inputs where they lie.
            return self.run_apart(jobs, Unread::default(), times, meter);
        };
        if jobs.is_empty() {
            times.mark_end();
            return unread.answer(times);
        }
        let results = self.execute(&mut jobs, &mut times);
        jobs.iter_mut().for_each(Job::restore_data);
        let Ok(results) = results else {
            return self.blame(jobs, unread, results.err(), times, meter);
        };
        times.mark_end();
        meter.batch(jobs.iter().map(|job| u64::from(job.rows().max(1))).sum(), &times);
        for (at, (job, result)) in jobs.into_iter().zip(results).enumerate() {
            unread.answer_before(at, times);
            job.finish(result, times);
        }
        unread.answer(times);
    }

    /// Ends a run that failed. Jobs that ran together run again, each alone, because the values of one request must not make other requests fail.
    fn blame(&mut self, jobs: Jobs, mut unread: Unread, error: Option<Status>, mut times: Times, meter: &dyn Meter) {
        if jobs.len() > 1 {
            return self.run_apart(jobs, unread, times, meter);
        }
        times.mark_end();
        unread.answer_before(0, times);
        let error = error.unwrap_or_else(|| Status::internal("the runtime failed without a reason"));
        for job in jobs {
            meter.batch(u64::from(job.rows().max(1)), &times);
            job.finish(Err(error.clone()), times);
        }
        unread.answer(times);
    }

    /// Runs each job alone.
    fn run_apart(&mut self, jobs: Jobs, mut unread: Unread, times: Times, meter: &dyn Meter) {
        for (at, job) in jobs.into_iter().enumerate() {
            unread.answer_before(at, times);
            if job.is_stopped() {
                job.finish(Err(Status::new(Code::Cancelled, "")), times);
            } else {
                self.run_together(smallvec![job], meter);
            }
        }
        unread.answer(times);
    }

    fn execute(&mut self, jobs: &mut [Job], times: &mut Times) -> Result<Outcomes, Status> {
        let mut work = Work { is_brief: self.is_brief, ..Work::new(jobs, &self.ragged, &mut self.blocks)? };
        self.engine.execute(&mut work, times)?;
        work.hand_out()
    }
}

impl<E: Execute> Instance for Joined<E> {
    fn run(&mut self, batch: Batch) {
        self.is_brief = false;
        self.run_all(batch);
    }

    fn begin(&mut self, batch: Batch, _patience: Duration) -> bool {
        // Only work that is known to be quick runs on a thread with other work.
        self.is_brief = true;
        self.run_all(batch);
        true
    }
}

impl<E: Execute> Joined<E> {
    fn run_all(&mut self, batch: Batch) {
        let Batch { jobs, meter } = batch;
        let mut together = Jobs::new();
        let mut inputs = BatchInputs::default();
        for job in jobs {
            if job.is_stopped() {
                // The jobs before this one run first, so that the answers keep the order of the jobs.
                if !together.is_empty() {
                    self.run_together(std::mem::take(&mut together), &*meter);
                }
                job.refuse(Status::new(Code::Cancelled, ""));
                continue;
            }
            let before = if together.is_empty() { BatchInputs::default() } else { inputs };
            let more = before.with(together.last(), &job, &self.ragged);
            let fits = |last| self.batching && fit(last, &job, &self.ragged) && more.may_be_joined();
            if together.last().is_none_or(fits) {
                inputs = more;
            } else {
                self.run_together(std::mem::take(&mut together), &*meter);
                inputs = BatchInputs::default().with(None, &job, &self.ragged);
            }
            together.push(job);
        }
        if !together.is_empty() {
            self.run_together(together, &*meter);
        }
    }
}

/// One execution: its inputs with the rows of all jobs, and memory for its outputs with the rows of all jobs.
pub struct Work<'a> {
    jobs: &'a mut [Job],
    ragged: &'a Ragged,
    blocks: &'a mut DeviceBlocks,
    inputs: SmallVec<[Tensor; 2]>,
    /// The outputs that at least one job wants, without their slots.
    wanted: WantedOutputs,
    made: SmallVec<[Made; 2]>,
    /// Slots that were taken for a single job and not written, each with the index of its output.
    spare: Vec<(usize, Slot)>,
    /// The indices of outputs whose slots were allocated in the expected size of the output. If the size turns out to be another, a new slot is
    /// allocated.
    measured: SmallVec<[usize; 2]>,
    is_brief: bool,
}

impl<'a> Work<'a> {
    fn new(jobs: &'a mut [Job], ragged: &'a Ragged, blocks: &'a mut DeviceBlocks) -> Result<Work<'a>, Status> {
        let mut inputs: SmallVec<[Tensor; 2]> = match &*jobs {
            [one] if ragged.is_empty() => one.inputs().iter().cloned().collect(),
            many => join_inputs(many, ragged)?.into(),
        };
        inputs.extend(ragged.batch_inputs(jobs)?);
        let wanted = wanted_by_any(jobs);
        let (made, measured) = (SmallVec::new(), SmallVec::new());
        Ok(Work { jobs, ragged, blocks, inputs, wanted, made, spare: Vec::new(), measured, is_brief: false })
    }

    /// Calls `stop` on another thread if all requests of this execution are to end early ([`Job::stop`]) before the guard is dropped.
    pub fn stopping(&self, stop: impl FnOnce() + Send + 'static) -> StopGuard {
        if self.is_brief {
            return StopGuard::none();
        }
        StopGuard::over(self.jobs.iter().map(Job::stop), Box::new(stop))
    }

    /// The inputs, with the rows of all jobs one after the other.
    pub fn inputs(&self) -> &[Tensor] {
        &self.inputs
    }

    /// The index of the input at this position. The inputs of the configuration come first, then those that the server adds to a request, then those
    /// that the server makes for a batch.
    pub fn index_of(&self, position: usize) -> usize {
        self.jobs.first().map_or(position, |job| job.inputs().index_of(position))
    }

    /// The input of this name.
    pub fn input(&self, name: &str) -> Option<&Tensor> {
        self.inputs.iter().find(|input| input.name == name)
    }

    /// Outputs that at least one job wants. Below, an output is identified by its index in the configuration, or by its name.
    pub fn wanted(&self) -> &WantedOutputs {
        &self.wanted
    }

    /// Memory of at least the output's size, for the runtime to compute into. It is the client's own memory if possible, else newly allocated. `None`
    /// if the runtime should use memory of its own: because the client's memory is too small, is not aligned for the datatype, is not on this host or
    /// overlaps an input, or because no job wants the output.
    pub fn slot(&mut self, output: impl OutputKey, datatype: DataType, shape: &[i64]) -> Result<Option<Slot>, Status> {
        self.slot_on(None, output, datatype, shape)
    }

    /// As [`Work::slot`], for a runtime that also writes memory of this device.
    pub fn slot_on(
        &mut self,
        device: Option<u32>,
        output: impl OutputKey,
        datatype: DataType,
        shape: &[i64],
    ) -> Result<Option<Slot>, Status> {
        let Some((index, Wanted { name, .. })) = self.wanted.find(output) else { return Ok(None) };
        let size = byte_size(datatype, shape).map_err(|e| Status::internal(format!("output '{name}': {e}")))?;
        let Some(size) = size else { return Ok(None) };
        // An output that is cut is copied to the client's memory afterwards.
        let (false, [job]) = (self.ragged.is_cut(index), &mut *self.jobs) else {
            return self.slot_for_rows(device, index, datatype, size).map(Some);
        };
        let place = job.output_place(index);
        let Some(capacity) = place.capacity else {
            self.measured.push(index);
            let preferred = device.map_or(Place::Host, Place::Device);
            let slot = job.measured(index, size, preferred)?;
            let writable = slot.place().is_host() || slot.place() == preferred;
            return Ok(writable.then_some(slot));
        };
        // The real size may be smaller than the expected one. So memory that seems too small is no error yet.
        let writable = place.place.is_host() || device.is_some_and(|device| place.place == Place::Device(device));
        if !writable || capacity < size {
            return Ok(None);
        }
        // The whole capacity is taken, because the real size may be larger than the expected one.
        let slot = job.output_bytes(index, capacity)?;
        if !slot.is_aligned(datatype.align()) || self.inputs.iter().any(|input| slot.overlaps(&input.data)) {
            self.spare.push((index, slot));
            return Ok(None);
        }
        Ok(Some(slot))
    }

    /// Memory for an output that is divided among jobs, or cut. It is the clients' own memory if the rows lie end to end there. Otherwise it is a
    /// block on the device, if the runtime writes there and any job wants the output there, or input memory of the instance that reads the rows next.
    /// Else it is allocated on the host.
    fn slot_for_rows(
        &mut self,
        device: Option<u32>,
        index: usize,
        datatype: DataType,
        size: usize,
    ) -> Result<Slot, Status> {
        let is_cut = self.ragged.is_cut(index);
        let device = device.filter(|_| !is_cut).map(Place::Device);
        let is_divided_by_rows = !is_cut && !self.ragged.is_scattered(index);
        let in_place = is_divided_by_rows.then(|| in_place::output_slot(self.jobs, index, size)).flatten();
        let is_writable = |slot: &Slot| slot.place().is_host() || Some(slot.place()) == device;
        if let Some(slot) = in_place.filter(|slot| is_writable(slot) && slot.is_aligned(datatype.align())) {
            return Ok(slot);
        }
        let on_device = device.and_then(|place| on_device::output_slot(self.jobs, self.blocks, place, (index, size)));
        let at_reader = || is_divided_by_rows.then(|| in_place::slot_at_reader(self.jobs, index, size)).flatten();
        match on_device.or_else(at_reader) {
            Some(slot) => Ok(slot),
            None => Slot::try_heap(size).map_err(|refused| {
                let name = self.wanted.find(index).map_or("", |(_, wanted)| &wanted.name);
                Status::no_memory(format_args!("output '{name}'"), refused)
            }),
        }
    }

    /// Takes back a slot that the runtime did not use.
    pub fn give_back(&mut self, output: impl OutputKey, slot: Slot) {
        if let Some((index, _)) = self.wanted.find(output).filter(|(index, _)| !self.measured.contains(index)) {
            self.spare.push((index, slot));
        }
    }

    /// Adds an output that was computed into `slot`. An output that no job wants is dropped, here and in the functions below.
    pub fn put_slot(
        &mut self,
        output: impl OutputKey,
        datatype: DataType,
        shape: &[i64],
        mut slot: Slot,
    ) -> Result<(), Status> {
        let Some((_, Wanted { name, .. })) = self.wanted.find(output) else { return Ok(()) };
        let size = byte_size(datatype, shape).map_err(|e| Status::internal(format!("output '{name}': {e}")))?;
        slot.truncate(size.unwrap_or_default());
        self.put(output, datatype, shape, Whole::Slot(slot.filled()));
        Ok(())
    }

    /// Adds an output that lies in memory of the runtime. It is copied only if the client wants it in other memory.
    pub fn put_buffer(&mut self, output: impl OutputKey, datatype: DataType, shape: &[i64], data: Buffer) {
        self.put(output, datatype, shape, Whole::Buffer(data));
    }

    /// Adds an output of numbers that the runtime made. They are all elements of `shape`. If there is a single job and its client named memory on
    /// this host, the numbers are copied there and the vector is returned for reuse. It is also returned if no job wants the output. Otherwise the
    /// vector becomes the output's memory.
    pub fn put_numbers<T: Number>(
        &mut self,
        output: impl OutputKey,
        datatype: DataType,
        shape: &[i64],
        numbers: Vec<T>,
    ) -> Result<Option<Vec<T>>, Status> {
        let Some((index, _)) = self.wanted.find(output) else { return Ok(Some(numbers)) };
        let size = size_of_val(numbers.as_slice());
        // An output that is cut is copied to the client's memory afterwards.
        if let (false, [job]) = (self.ragged.is_cut(index), &mut *self.jobs) {
            let OutputPlace { place, capacity } = job.output_place(index);
            if place.is_host() && capacity.is_some_and(|capacity| capacity >= size) {
                let mut slot = job.output_bytes(index, size)?;
                let written = slot.write_numbers(0, &numbers, Reason::OutputPlacement);
                written.map_err(|fault| Status::internal(fault.to_string()))?;
                self.put(index, datatype, shape, Whole::Slot(slot.filled()));
                return Ok(Some(numbers));
            }
        }
        self.put_buffer(index, datatype, shape, Buffer::from_numbers(numbers));
        Ok(None)
    }

    /// Adds a BYTES output.
    pub fn put_strings<'s>(
        &mut self,
        output: impl OutputKey,
        shape: &[i64],
        elements: impl IntoIterator<Item = &'s [u8]>,
    ) -> Result<(), Status> {
        let Some((_, Wanted { name, .. })) = self.wanted.find(output) else { return Ok(()) };
        let refuse = |refused: NoMemory| Status::no_memory(format_args!("output '{name}'"), refused);
        let count = element_count(shape).map_err(|e| Status::internal(format!("output '{name}': {e}")))?;
        // The ends are needed only to divide the strings among several jobs.
        let count = if self.jobs.len() > 1 { usize::try_from(count).unwrap_or(usize::MAX) } else { 0 };
        let _reservation = if count < ROOM_ELEMENTS_MIN {
            MemoryReservation::none()
        } else {
            MemoryReservation::take(count.saturating_mul(size_of::<usize>())).map_err(refuse)?
        };
        let mut bytes = GrowableBuffer::with_capacity(0).map_err(refuse)?;
        let mut ends = Vec::with_capacity(count);
        for element in elements {
            let length = strings::length_word(element).ok_or_else(|| {
                Status::internal(format!("output '{name}': an element of {} bytes is too long", element.len()))
            })?;
            bytes.push(&length).and_then(|()| bytes.push(element)).map_err(refuse)?;
            if ends.len() < count {
                ends.push(bytes.len());
            }
        }
        nerite_memory::count_copied(Reason::Strings, bytes.len());
        self.put(output, DataType::Bytes, shape, Whole::Strings { bytes: bytes.finish(), ends });
        Ok(())
    }

    fn put(&mut self, output: impl OutputKey, datatype: DataType, shape: &[i64], whole: Whole) {
        let Some((index, Wanted { name, .. })) = self.wanted.find(output) else { return };
        self.made.push(Made { index, name: name.clone(), datatype, shape: Shape::from_slice(shape), whole });
    }

    /// Gives every job its rows. An error of one job, such as memory that is too small, concerns only that job.
    fn hand_out(self) -> Result<Outcomes, Status> {
        let Work { jobs, ragged, made, spare, .. } = self;
        match jobs {
            [job] => Ok(smallvec![apart::give_whole(job, made, spare, ragged)]),
            jobs => apart::give_rows(jobs, made, ragged),
        }
    }
}

/// The outputs that at least one job wants, without their slots.
fn wanted_by_any(jobs: &[Job]) -> WantedOutputs {
    let mut all = WantedOutputs::default();
    for (index, Wanted { name, .. }) in jobs.iter().flat_map(|job| job.responder().wanted_outputs().indexed()) {
        if index.position(&all).is_none() {
            all.push(index, Wanted { name: name.clone(), slot: None });
        }
    }
    all
}

fn join_inputs(jobs: &[Job], ragged: &Ragged) -> Result<Vec<Tensor>, Status> {
    let Some((first, _)) = jobs.split_first() else { return Ok(Vec::new()) };
    first.inputs().iter().enumerate().map(|(at, input)| join(jobs, at, input, ragged)).collect()
}

/// Joins the tensors of one input of all jobs. `input` is the first job's tensor, at the position `at` of its inputs.
fn join(jobs: &[Job], at: usize, input: &Tensor, ragged: &Ragged) -> Result<Tensor, Status> {
    // Jobs that run together leave out the same inputs. So the same position means the same input.
    let parts: Vec<&Tensor> = jobs.iter().filter_map(|job| job.inputs().get(at)).collect();
    let index = jobs.first().map_or(at, |job| job.inputs().index_of(at));
    let mut shape = input.shape.clone();
    if let Some(padded) = ragged.padded(index) {
        let (shape, data) = padded::join(input, padded, &parts)?;
        return Ok(Tensor { name: input.name.clone(), datatype: input.datatype, shape, data });
    }
    if ragged.has(index) {
        shape = Ragged::shape(&parts)?;
    } else if let Some(rows) = shape.first_mut() {
        *rows = parts.iter().filter_map(|part| part.shape.first()).sum();
    }
    let data: Vec<&Buffer> = parts.iter().map(|part| &part.data).collect();
    let data = match Buffer::joined(&data) {
        Some(whole) => whole,
        None => gather(&input.name, &data)?,
    };
    Ok(Tensor { name: input.name.clone(), datatype: input.datatype, shape, data })
}

#[cfg(test)]
mod tests;
