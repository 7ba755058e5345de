//! Which parts of a request are replaced while its runtime sees only memory of the host?

use std::sync::Arc;

use nerite_memory::{Buffer, Reason, Slot, Staging};
use nerite_request::{Inputs, Output, Status, Wanted, WantedOutputs};
use nerite_tensor::Tensor;

use crate::DeviceAccess;
use crate::output_place::too_small;

/// Which tensors are staged, and through which memory.
#[derive(Clone)]
pub(crate) struct StagingPlan {
    pub staging: Arc<dyn Staging>,
    pub access: DeviceAccess,
}

/// The parts of a request that were replaced while its runtime sees only memory of the host.
pub(crate) struct StagedTensors {
    /// When copying began, in ns of [`crate::now_ns`]. Statistics count the copying as part of making the inputs ready, not as time in the queue.
    since: u64,
    staging: Arc<dyn Staging>,
    /// The client's own inputs. They are not read again. They are kept so that the client's regions count as used until its request has been answered.
    _inputs: Vec<Buffer>,
    /// The clients' slots on devices, each with the index of its output.
    outputs: Vec<(usize, Slot)>,
}

impl StagedTensors {
    /// Whether any tensor lies in memory of a device that `access` does not allow.
    pub(crate) fn is(inputs: &[Tensor], wanted: &[Wanted], access: &DeviceAccess) -> bool {
        let beyond = |wanted: &Wanted| wanted.slot.as_ref().is_some_and(|slot| !access.writes(&wanted.name, slot));
        inputs.iter().any(|input| !access.takes(input)) || wanted.iter().any(beyond)
    }

    /// Replaces inputs by copies on the host, and sets the slots of outputs aside. `brought` has the copies that were made before, each with the
    /// index of its input.
    pub(crate) fn take(
        inputs: &mut Inputs,
        wanted: &mut WantedOutputs,
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
        for (index, wanted) in wanted.indexed_mut() {
            if let Some(slot) = wanted.slot.take_if(|slot| !access.writes(&wanted.name, slot)) {
                outputs.push((index, slot));
            }
        }
        Ok(StagedTensors { since, staging: Arc::clone(staging), _inputs: put_aside, outputs })
    }

    /// When copying began.
    pub(crate) fn since(&self) -> u64 {
        self.since
    }

    /// The size of the memory that the client named for this output on a device.
    pub(crate) fn capacity(&self, output: usize) -> Option<usize> {
        self.outputs.iter().find(|(index, _)| *index == output).map(|(_, slot)| slot.len())
    }

    /// Memory of the host for an output that will go to a device.
    pub(crate) fn slot(&self, size: usize) -> Result<Slot, Status> {
        self.staging.slot(size).map_err(|full| Status::unavailable(full.to_string()))
    }

    /// Copies each output to the memory that its client named, and keeps its slot if `more` responses follow. Returns whether any slot was set aside.
    pub(crate) fn deliver(&mut self, made: &mut [Output], more: bool) -> Result<bool, Status> {
        let any = !self.outputs.is_empty();
        for (index, mut slot) in std::mem::take(&mut self.outputs) {
            if more {
                self.outputs.extend(slot.again().map(|again| (index, again)));
            }
            let Some(output) = made.iter_mut().find(|output| output.index == index) else { continue };
            if slot.len() < output.data.len() {
                return Err(too_small(&output.name, slot.len(), output.data.len()));
            }
            slot.truncate(output.data.len());
            slot.fill_from(0, &output.data, Reason::CrossDevice)
                .map_err(|error| Status::internal(format!("output '{}': {error}", output.name)))?;
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
