//! Which memory do the names in a request mean, and does the request fit its model?
//!
//! Region names become Buffers and Slots here, and the layers below do not see them. Whether the tensors fit is the model's contract
//! ([`nerite_engine::Contract`]). Both do their checks in Triton's order, so a request with two faults gets the same error as from Triton.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use nerite_engine::{CheckedTensors, Contract, Prefix, Tensors};
use nerite_memory::{Buffer, Slot};
use nerite_request::limits::{Counted, TensorsMax, check_count};
use nerite_request::names::first_repeated;
use nerite_request::{InferInput, InferInputs, InferRequest, Inputs, NamedOutputs, RegionRef, Source, Status, Wanted};
use nerite_shm::Lease;
use nerite_tensor::Tensor;

/// Looks up the memory of a region.
pub trait Regions {
    /// The part of a region to read from.
    fn buffer(&self, region: &RegionRef) -> Result<Buffer, Status>;
    /// The part of a region to write to.
    fn slot(&self, region: &RegionRef) -> Result<Slot, Status>;
    /// The lease of that name, if the session of the request has it. It is found before other memory of that name.
    fn own_lease(&self, _name: &str) -> Option<Arc<Lease>> {
        None
    }
}

/// Turns the request's names into memory and checks its tensors against the model.
pub fn admit(
    infer_request: &mut InferRequest,
    contract: &Contract<'_>,
    regions: &dyn Regions,
) -> Result<CheckedTensors, Status> {
    let is_raw = infer_request.raw_input.is_some();
    if let Some(body) = infer_request.raw_input.take() {
        infer_request.inputs.push(contract.raw_input(Prefix(&infer_request.id), *body)?);
    }
    let most = TensorsMax::of_model(contract.inputs.len(), contract.outputs.len());
    check_count(Counted::Inputs, infer_request.inputs.len(), most.inputs)?;
    check_count(Counted::Outputs, infer_request.outputs.len(), most.outputs)?;
    let request = Prefix(&infer_request.id);
    let inputs = take_inputs(request, std::mem::take(&mut infer_request.inputs), regions)?;
    let wanted = take_outputs(request, infer_request, regions)?;
    contract.check(request, Tensors { inputs, wanted, is_raw })
}

/// Refuses duplicates and resolves regions, in the client's order.
fn take_inputs(request: Prefix<'_>, inputs: InferInputs, regions: &dyn Regions) -> Result<Inputs, Status> {
    let repeated = first_repeated(&inputs, |input| &input.name);
    let taken = |(at, InferInput { name, datatype, shape, source }): (usize, InferInput)| {
        if repeated == Some(at) {
            return Err(request.repeated_input(&name));
        }
        let data = match source {
            Source::Inline(data) => data,
            Source::Region(region) => regions.buffer(&region)?,
        };
        Ok(Tensor { name, datatype, shape, data })
    };
    if !inputs.spilled() {
        return inputs.into_iter().enumerate().map(taken).collect();
    }
    // `collect` reuses the allocation of the vector that it consumes, because entries of both have the same size.
    inputs.into_vec().into_iter().enumerate().map(taken).collect::<Result<Vec<_>, _>>().map(Inputs::from)
}

/// Refuses duplicates and resolves regions, in the client's order.
fn take_outputs(
    request: Prefix<'_>,
    infer_request: &InferRequest,
    regions: &dyn Regions,
) -> Result<NamedOutputs, Status> {
    let repeated = first_repeated(&infer_request.outputs, |output| &output.name);
    let mut wanted = NamedOutputs::with_capacity(infer_request.outputs.len());
    for (at, output) in infer_request.outputs.iter().enumerate() {
        if repeated == Some(at) {
            return Err(request.repeated_output(&output.name));
        }
        let slot = output.region.as_ref().map(|region| regions.slot(region)).transpose()?;
        wanted.push(Wanted { name: output.name.clone(), slot });
    }
    Ok(wanted)
}
