//! Which memory of a request can its runtime not use, and how are its bytes staged?
//!
//! ```text
//!   client's region on a device ──► staging (page-locked) ──► runtime on the host ──► staging ──► client's region on a device
//!                                cross_device, counted                            cross_device, counted
//! ```
//! Staging is done here for all runtimes. A runtime that computes on the host sees only memory of this host. A runtime that computes on a device gets
//! that device's memory as it is ([`DeviceAccess`]), and all other memory staged on the host.

use std::sync::Arc;

use nerite_memory::{Buffer, Extent, Reason, Staging};

use crate::staged_tensors::StagingPlan;
use crate::{Adapted, Batch, BatchAdapter, DeviceAccess, Instance, Job, Jobs, Times};

/// Stages tensors in memory of devices that an [`Instance`] does not use directly.
pub struct Staged {
    plan: StagingPlan,
}

impl Staged {
    /// `instance` gets tensors of devices in memory of `staging`, except for those within its `access`.
    pub fn over(instance: Box<dyn Instance>, staging: Arc<dyn Staging>, access: DeviceAccess) -> Adapted<Staged> {
        Adapted::new(instance, Staged { plan: StagingPlan { staging, access } })
    }
}

impl BatchAdapter for Staged {
    /// The batch with staged inputs. Jobs that cannot be staged are answered here.
    fn adapt(&self, batch: Batch) -> Option<Batch> {
        if !batch.jobs.iter().any(|job| job.needs_staging(&self.plan.access)) {
            return Some(batch);
        }
        let Batch { jobs, meter } = batch;
        let times = Times::begin();
        let mut ready = Jobs::new();
        let brought = side_by_side(&jobs, &self.plan);
        for (index, mut job) in jobs.into_iter().enumerate() {
            let own = brought.iter().filter_map(|(input, parts)| Some((*input, parts.get(index)?)));
            match job.stage_in(times.start, &self.plan, own.collect()) {
                Ok(()) => ready.push(job),
                Err(error) => job.finish(Err(error), times),
            }
        }
        (!ready.is_empty()).then_some(Batch { jobs: ready, meter })
    }
}

/// Copies each input of jobs that run together into one piece of memory, in the order of the jobs. A runtime that joins their rows finds them joined
/// already. The copies of an input are returned with its index. An input is left out if some job needs no copy of it, or if it cannot be copied. Each
/// job then stages this input by itself, and an error concerns only that job.
fn side_by_side(jobs: &[Job], StagingPlan { staging, access }: &StagingPlan) -> Vec<(usize, Vec<Buffer>)> {
    let [first, _, ..] = jobs else { return Vec::new() };
    let parts_of = |index: usize| {
        let part =
            |job: &Job| job.inputs().at(index).filter(|input| !access.takes(input)).map(|input| input.data.clone());
        jobs.iter().map(part).collect::<Option<Vec<Buffer>>>()
    };
    let indices = (0..first.inputs().len()).map(|at| first.inputs().index_of(at));
    indices
        .filter_map(|index| parts_of(index).and_then(|parts| plan(&parts, &**staging)).map(|home| (index, home)))
        .collect()
}

fn plan(parts: &[Buffer], staging: &dyn Staging) -> Option<Vec<Buffer>> {
    let mut slot = staging.slot(parts.iter().map(Buffer::len).sum()).ok()?;
    // Tensors that lie end to end on the device are copied with one call.
    let joined = Buffer::joined(&parts.iter().collect::<Vec<_>>()).map(|whole| vec![whole]);
    let mut at = 0;
    for part in joined.as_deref().unwrap_or(parts) {
        slot.fill_from(at, part, Reason::CrossDevice).ok()?;
        at += part.len();
    }
    let whole = slot.filled().into_buffer();
    let mut at = 0;
    let slice = |part: &Buffer| {
        let extent = Extent::new(at, part.len(), whole.len()).ok()?;
        at = extent.end();
        Some(whole.slice(extent))
    };
    parts.iter().map(slice).collect()
}
