//! Which parts of a request are replaced while its runtime sees only memory of the host?

use std::sync::Arc;

use nerite_memory::{Buffer, Reason, Slot, Staging};
use nerite_request::{Inputs, Output, Status, Wanted};
use nerite_tensor::{Name, Tensor};

use crate::DeviceAccess;
use crate::output_place::too_small;

/// What is staged, and through which memory.
#[derive(Clone)]
pub(crate) struct StagingPlan {
    pub staging: Arc<dyn Staging>,
    pub access: DeviceAccess,
}

/// The parts of a request that were replaced while its runtime sees only memory of the host.
pub(crate) struct StagedTensors {
    /// When copying began, in ns of [`crate::now_ns`]. It is part of making the inputs ready, not of the queue.
    since: u64,
    staging: Arc<dyn Staging>,
    /// Not read again. The client's regions count as used until its request has been answered.
    _inputs: Vec<Buffer>,
    outputs: Vec<(Name, Slot)>,
}

impl StagedTensors {
    /// Whether any tensor lies in memory of a device that `access` does not allow.
    pub(crate) fn is(inputs: &[Tensor], wanted: &[Wanted], access: &DeviceAccess) -> bool {
        let beyond = |wanted: &Wanted| wanted.slot.as_ref().is_some_and(|slot| !access.writes(&wanted.name, slot));
        inputs.iter().any(|input| !access.takes(input)) || wanted.iter().any(beyond)
    }

    /// Copies inputs to the host, except for those that are in `brought` already, with their indices, and sets the slots of outputs aside.
    pub(crate) fn take(
        inputs: &mut Inputs,
        wanted: &mut [Wanted],
        since: u64,
        StagingPlan { staging, access }: &StagingPlan,
        brought: Vec<(usize, &Buffer)>,
    ) -> Result<StagedTensors, Status> {
        let (mut put_aside, mut outputs) = (Vec::new(), Vec::new());
        for at in 0..inputs.len() {
            let (index, input) = (inputs.index_of(at), &mut inputs[at]);
            if access.takes(input) {
                continue;
            }
            let home = match brought.iter().find(|(brought, _)| *brought == index) {
                Some((_, home)) => (*home).clone(),
                None => carried(input, &**staging)?,
            };
            put_aside.push(std::mem::replace(&mut input.data, home));
        }
        for wanted in wanted {
            if let Some(slot) = wanted.slot.take_if(|slot| !access.writes(&wanted.name, slot)) {
                outputs.push((wanted.name.clone(), slot));
            }
        }
        Ok(StagedTensors { since, staging: Arc::clone(staging), _inputs: put_aside, outputs })
    }

    /// When copying began.
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

    /// Copies each output to the memory that its client named, and keeps its slot if `more` responses follow. Returns whether there was any output.
    pub(crate) fn deliver(&mut self, made: &mut [Output], more: bool) -> Result<bool, Status> {
        let any = !self.outputs.is_empty();
        for (name, mut slot) in std::mem::take(&mut self.outputs) {
            if more {
                self.outputs.extend(slot.again().map(|again| (name.clone(), again)));
            }
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
