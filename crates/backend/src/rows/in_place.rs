//! Can the rows of an output be computed where the requests of a batch want them, or where the next model reads them?

use std::sync::Arc;

use nerite_memory::Slot;

use super::apart::rows_of;
use crate::Job;

/// The clients' memory for an output of `size` bytes, if the rows of all jobs lie end to end there. `None` if any job reads from this memory: a run
/// that fails is repeated with each job alone, so it must not overwrite any input.
pub(super) fn output_slot(jobs: &[Job], output: usize, size: usize) -> Option<Slot> {
    joined_slots(jobs, output, size).filter(|slot| !jobs.iter().any(|job| job.reads(slot)))
}

/// Input memory for an output of `size` bytes, if the same instance of another model reads the rows of all jobs next.
pub(super) fn slot_at_reader(jobs: &[Job], output: usize, size: usize) -> Option<Slot> {
    let size_of_each = size.checked_div(jobs.len())?;
    let memory = |job: &Job| job.responder().memory_at_reader(output, size_of_each);
    let (first, others) = jobs.split_first()?;
    let first = memory(first)?;
    let is_same = |job: &Job| memory(job).is_some_and(|other| Arc::ptr_eq(&first, &other));
    others.iter().all(is_same).then(|| first.slot(size)).flatten()
}

fn joined_slots(jobs: &[Job], output: usize, size: usize) -> Option<Slot> {
    let rows = |job: &Job| usize::try_from(rows_of(job)).ok();
    let all = jobs.iter().try_fold(0usize, |sum, job| sum.checked_add(rows(job)?))?;
    let row = size.checked_div(all).filter(|row| row * all == size)?;
    let part = |job: &Job| {
        let slot = job.output_slot(output)?;
        let size = rows(job)? * row;
        let mut slot = slot.again().filter(|slot| slot.len() >= size)?;
        slot.truncate(size);
        Some(slot)
    };
    Slot::joined(jobs.iter().map(part).collect::<Option<_>>()?)
}
