//! How are rows on a device joined there, and where on the device are outputs of several jobs computed?
//!
//! ```text
//!   job 0: region on the device ──┐ batch_gather                       ┌─ batch_scatter ──► job 0: region on the device
//!   job 1: region on the device ──┼──────────────► block ─► run ─► block ──────────────────► job 1: region on the device
//!   job 2: in the request ────────┘ cross_device                       └─ cross_device ───► job 2: in the response
//! ```
//! As in Triton, the rows of an input are gathered where the model runs: on the device if any of them lies there, else on the host. Rows on the
//! device are used in place only if, for every input with rows on the device, its rows lie end to end. Otherwise all of these inputs are gathered
//! ([`columns`]).

use std::collections::VecDeque;

use nerite_memory::{Buffer, Extent, Place, Reason, Slot, SlotError};
use nerite_request::Status;
use nerite_tensor::Tensor;
use smallvec::SmallVec;

use super::DeviceBlocks;
use crate::{Job, Jobs, Times};

/// Jobs whose inputs could not be read. Each comes with the number of readable jobs before it.
#[derive(Default)]
pub(super) struct Unread(VecDeque<(usize, Job, Status)>);

impl Unread {
    /// Answers the unreadable jobs that come before the readable job at the position `at`.
    pub fn answer_before(&mut self, at: usize, times: Times) {
        while self.0.front().is_some_and(|(before, ..)| *before <= at) {
            let Some((_, job, error)) = self.0.pop_front() else { return };
            job.finish(Err(error), times);
        }
    }

    /// Answers all unreadable jobs that are left.
    pub fn answer(mut self, times: Times) {
        self.answer_before(usize::MAX, times);
    }
}

/// An input that is gathered.
struct Column {
    /// Its position among the inputs of each job.
    at: usize,
    block: Slot,
    /// Bytes of the block that have been written.
    len: usize,
}

/// Copies the inputs of jobs that run together to blocks of a device, one for each input, so that their rows lie end to end. Inputs whose rows all
/// lie on the host are not copied. No input is copied if those on the device lie end to end already. [`Job::restore_data`] gives the jobs their own
/// inputs back. Jobs whose inputs cannot be copied are taken out and returned. An error means that the device has no memory, and that the jobs are
/// unchanged.
pub(super) fn gather(jobs: &mut Jobs, blocks: &mut DeviceBlocks) -> Result<Unread, SlotError> {
    let mut unread = Unread::default();
    if jobs.len() < 2 || jobs.iter().all(Job::has_host_inputs) {
        return Ok(unread);
    }
    let mut columns = columns(jobs, blocks)?;
    let mut at = 0;
    while let Some(job) = jobs.get(at) {
        match copy(job, &mut columns) {
            Ok(()) => at += 1,
            Err(error) => unread.0.push_back((at, jobs.remove(at), error)),
        }
    }
    for Column { at, block, len } in columns {
        let whole = block.filled().into_buffer();
        let mut from = 0;
        for job in jobs.iter_mut() {
            let size = job.inputs().get(at).map_or(0, |input| input.data.len());
            let part = Extent::new(from, size, len).expect("`len` is the sum of these sizes");
            job.replace_data(at, whole.slice(part));
            from = part.end();
        }
    }
    Ok(unread)
}

/// The inputs to gather, with empty blocks. They are all inputs with rows on a device, or none if the rows of each of them lie end to end. If one
/// input must be gathered, all of them are. The reason is that a job whose inputs cannot be copied is taken out, and then the rows of the other jobs
/// no longer lie end to end.
fn columns(jobs: &[Job], blocks: &mut DeviceBlocks) -> Result<Vec<Column>, SlotError> {
    let Some(first) = jobs.first() else { return Ok(Vec::new()) };
    let parts_of = |at: usize| jobs.iter().filter_map(|job| job.inputs().get(at)).collect::<SmallVec<[&Tensor; 8]>>();
    let all = (0..first.inputs().len()).map(|at| (at, parts_of(at)));
    let on_device: Vec<_> = all.filter(|(_, parts)| !is_host(parts)).collect();
    let is_joined = |(_, parts): &(usize, SmallVec<[&Tensor; 8]>)| {
        Buffer::joined(&parts.iter().map(|part| &part.data).collect::<SmallVec<[&Buffer; 8]>>()).is_some()
    };
    if on_device.iter().all(is_joined) {
        return Ok(Vec::new());
    }
    let column = |(at, parts): (usize, SmallVec<[&Tensor; 8]>)| {
        let Tensor { data, .. } = parts.iter().find(|part| !part.data.place().is_host())?;
        let len = parts.iter().map(|part| part.data.len()).sum();
        let block = blocks.take(data.place(), len, |len| data.try_alloc_same_place(len));
        Some(block.map(|block| Column { at, block, len: 0 }))
    };
    on_device.into_iter().filter_map(column).collect()
}

/// Copies the job's inputs into the blocks, after those of the jobs before it.
fn copy(job: &Job, columns: &mut [Column]) -> Result<(), Status> {
    for Column { at, block, len } in &mut *columns {
        let Some(Tensor { name, data, .. }) = job.inputs().get(*at) else { continue };
        let reason = Reason::BatchGather.between(data.place(), block.place());
        block.fill_from(*len, data, reason).map_err(|error| Status::internal(format!("input '{name}': {error}")))?;
    }
    // The lengths grow only after all inputs were copied. So the next job overwrites the bytes of a job that failed.
    for Column { at, len, .. } in columns {
        *len += job.inputs().get(*at).map_or(0, |input| input.data.len());
    }
    Ok(())
}

/// A block of `size` bytes at `place` for the rows of the output with this index, if any job wants its rows there. `None` if the output should be computed
/// on the host.
pub(super) fn output_slot(
    jobs: &[Job],
    blocks: &mut DeviceBlocks,
    place: Place,
    (output, size): (usize, usize),
) -> Option<Slot> {
    let there = jobs.iter().filter_map(|job| job.output_slot(output)).find(|slot| slot.place() == place)?;
    blocks.take(place, size, |len| there.try_alloc_same_place(len)).ok()
}

fn is_host(parts: &[&Tensor]) -> bool {
    parts.iter().all(|part| part.data.place().is_host())
}
