//! Which memory of a request can its runtime not reach, and how does it get its bytes?
//!
//! ```text
//!   client's region on a device ──► staging (page-locked) ──► runtime on the host ──► staging ──► client's region on a device
//!                                cross_device, counted                            cross_device, counted
//! ```
//! Here, once, for all runtimes. Those that compute on the host see memory of this host alone; one that computes on a device is
//! given that device's memory as it is ([`DeviceAccess`]), and the rest of it the same way as the others.

use std::sync::Arc;
use std::time::Duration;

use nerite_memory::{Buffer, Extent, Reason, Slot, Staging};
use nerite_request::{Output, Request, Status, Wanted};
use nerite_tensor::{Name, Tensor};

use crate::job::too_small;
use crate::{Batch, DeviceAccess, Instance, Job, Times};

/// An [`Instance`], and what carries memory of devices to it and back that it does not take.
pub struct Staged {
    instance: Box<dyn Instance>,
    carry: StagingPlan,
}

/// What is carried, and through what.
#[derive(Clone)]
pub(crate) struct StagingPlan {
    pub staging: Arc<dyn Staging>,
    pub reach: DeviceAccess,
}

impl Staged {
    /// `instance` sees tensors of devices in memory of `staging`, those within its `reach` apart.
    pub fn over(instance: Box<dyn Instance>, staging: Arc<dyn Staging>, reach: DeviceAccess) -> Staged {
        Staged { instance, carry: StagingPlan { staging, reach } }
    }
}

impl Staged {
    /// The batch as the instance sees it; `None` if nothing of it could be brought.
    fn staged_in(&self, batch: Batch) -> Option<Batch> {
        if !batch.jobs.iter().any(|job| job.is_away(&self.carry.reach)) {
            return Some(batch);
        }
        let Batch { jobs, meter } = batch;
        let times = Times::begin();
        let mut ready = Vec::with_capacity(jobs.len());
        let brought = side_by_side(&jobs, &self.carry);
        for (index, mut job) in jobs.into_iter().enumerate() {
            let own = brought.iter().filter_map(|(name, parts)| Some((name.as_str(), parts.get(index)?)));
            match job.stage_in(times.start, &self.carry, own.collect()) {
                Ok(()) => ready.push(job),
                Err(error) => job.finish(Err(error), times, &*meter),
            }
        }
        (!ready.is_empty()).then_some(Batch { jobs: ready, meter })
    }
}

impl Instance for Staged {
    fn run(&mut self, batch: Batch) {
        if let Some(batch) = self.staged_in(batch) {
            self.instance.run(batch);
        }
    }

    fn begin(&mut self, batch: Batch, patience: Duration) -> bool {
        self.staged_in(batch).is_none_or(|batch| self.instance.begin(batch, patience))
    }

    fn finish(&mut self) {
        self.instance.finish();
    }
}

/// Inputs of jobs that run together, carried into one piece of memory in the order of the jobs: a runtime that joins their rows
/// finds them joined. An input that not all of them have out of reach is left out, and so is one that cannot be carried: alone,
/// each job will tell whose fault that is.
fn side_by_side(jobs: &[Job], StagingPlan { staging, reach }: &StagingPlan) -> Vec<(Name, Vec<Buffer>)> {
    let [first, _, ..] = jobs else { return Vec::new() };
    let parts_of = |name: &str| {
        let part = |job: &Job| job.input(name).filter(|input| !reach.takes(input)).map(|input| input.data.clone());
        jobs.iter().map(part).collect::<Option<Vec<Buffer>>>()
    };
    let names = first.inputs().iter().map(|input| input.name.clone());
    names
        .filter_map(|name| parts_of(&name).and_then(|parts| carry(&parts, &**staging)).map(|home| (name, home)))
        .collect()
}

fn carry(parts: &[Buffer], staging: &dyn Staging) -> Option<Vec<Buffer>> {
    let mut slot = staging.slot(parts.iter().map(Buffer::len).sum()).ok()?;
    // What lies end to end on the device crosses the bus at once.
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

/// What was put aside of a request while its runtime sees memory of the host.
pub(crate) struct StagedTensors {
    /// When carrying began, in ns of [`crate::now_ns`]: it is part of making the inputs ready, not of the queue.
    since: u64,
    staging: Arc<dyn Staging>,
    /// Not read again, but the client's regions count as used until its request has been answered.
    _inputs: Vec<Buffer>,
    outputs: Vec<(Name, Slot)>,
}

impl StagedTensors {
    /// Whether any of it lies on a device, out of reach.
    pub(crate) fn is(request: &Request, reach: &DeviceAccess) -> bool {
        let beyond = |wanted: &Wanted| wanted.slot.as_ref().is_some_and(|slot| !reach.writes(&wanted.name, slot));
        request.inputs.iter().any(|input| !reach.takes(input)) || request.wanted.iter().any(beyond)
    }

    /// Copies inputs to the host, those apart that are in `brought` already, and puts the places of outputs aside.
    pub(crate) fn take(
        request: &mut Request,
        since: u64,
        StagingPlan { staging, reach }: &StagingPlan,
        brought: Vec<(&str, &Buffer)>,
    ) -> Result<StagedTensors, Status> {
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for input in request.inputs.iter_mut().filter(|input| !reach.takes(input)) {
            let home = match brought.iter().find(|(name, _)| *name == input.name) {
                Some((_, home)) => (*home).clone(),
                None => carried(input, &**staging)?,
            };
            inputs.push(std::mem::replace(&mut input.data, home));
        }
        for wanted in &mut request.wanted {
            if let Some(slot) = wanted.slot.take_if(|slot| !reach.writes(&wanted.name, slot)) {
                outputs.push((wanted.name.clone(), slot));
            }
        }
        Ok(StagedTensors { since, staging: Arc::clone(staging), _inputs: inputs, outputs })
    }

    /// When carrying began.
    pub(crate) fn since(&self) -> u64 {
        self.since
    }

    /// Bytes that the client left for this output on a device.
    pub(crate) fn capacity(&self, output: &str) -> Option<usize> {
        self.outputs.iter().find(|(name, _)| name == output).map(|(_, slot)| slot.len())
    }

    /// Memory of the host for an output that will go to a device.
    pub(crate) fn slot(&self, size: usize) -> Result<Slot, Status> {
        self.staging.slot(size).map_err(|full| Status::unavailable(full.to_string()))
    }

    /// Copies each output to where its client wants it. Whether there was any.
    pub(crate) fn deliver(&mut self, made: &mut [Output]) -> Result<bool, Status> {
        let any = !self.outputs.is_empty();
        for (name, mut slot) in std::mem::take(&mut self.outputs) {
            let Some(output) = made.iter_mut().find(|output| output.name == name) else { continue };
            if slot.len() < output.data.len() {
                return Err(too_small(&name, slot.len(), output.data.len()));
            }
            slot.truncate(output.data.len());
            slot.fill_from(0, &output.data, Reason::CrossDevice)
                .map_err(|error| Status::internal(format!("output '{name}': {error}")))?;
            output.data = slot.filled().into_buffer();
            output.placed = true;
        }
        Ok(any)
    }

    /// Undoes what [`StagedTensors::take`] did to the places of outputs.
    pub(crate) fn restore(self, request: &mut Request) {
        for (name, slot) in self.outputs {
            if let Some(wanted) = request.wanted.iter_mut().find(|wanted| wanted.name == name) {
                wanted.slot = Some(slot);
            }
        }
    }
}

fn carried(input: &Tensor, staging: &dyn Staging) -> Result<Buffer, Status> {
    let mut slot = staging.slot(input.data.len()).map_err(|full| Status::unavailable(full.to_string()))?;
    slot.fill_from(0, &input.data, Reason::CrossDevice)
        .map_err(|error| Status::internal(format!("input '{}': {error}", input.name)))?;
    Ok(slot.filled().into_buffer())
}

impl std::fmt::Debug for StagedTensors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StagedTensors({} outputs)", self.outputs.len())
    }
}
