//! How is an engine's response sent to the server?

use std::mem::take;

use nerite_memory::Reason;
use nerite_process::packets::{SegmentOffset, TensorAt, WrittenResponse};
use nerite_request::{InferResponse, Output, Outputs, Parameters, Recycled, Status};
use nerite_tensor::Tensor;

use super::super::cut;
use super::super::server_channel::OutputSpace;
use super::WorkerRequest;

/// A response, and where each of its outputs lies; or the failure.
pub(in super::super) struct Answered {
    read: Result<Parameters, Status>,
    /// The outputs; for a failure the states that the model kept.
    outputs: Vec<(Output, Option<SegmentOffset>)>,
    /// Whether the error is the answer of a compiled backend, which reported the request as a success.
    is_own_error: bool,
}

impl Answered {
    pub(in super::super) fn of(request: &WorkerRequest, response: Result<Recycled<InferResponse>, Status>) -> Answered {
        let (read, mut outputs) = match response {
            Ok(mut response) => (Ok(take(&mut response.parameters)), take(&mut response.outputs)),
            Err(error) => (Err(cut(error)), Outputs::new()),
        };
        for Tensor { name, datatype, shape, data } in request.take_states() {
            if outputs.iter().all(|output| output.name != name) {
                outputs.push(Output { index: outputs.len(), name, datatype, shape, data, placed: false });
            }
        }
        let is_own_error = read.is_err() && request.is_noted_success();
        let place = |output: Output| location(request, &output).map(|location| (output, location));
        match outputs.into_iter().map(place).collect() {
            Ok(outputs) => Answered { read, outputs, is_own_error },
            // If the request itself failed, that error is reported.
            Err(status) => Answered { read: read.and(Err(cut(status))), outputs: Vec::new(), is_own_error },
        }
    }

    /// The form in which a packet sends it.
    pub(in super::super) fn read(&self) -> WrittenResponse<'_> {
        let outputs = self.outputs.iter().map(|(output, location)| {
            let Output { name, datatype, shape, data, .. } = output;
            TensorAt { name, datatype: *datatype, shape: shape.as_slice(), location: *location, bytes: data.len() }
        });
        match &self.read {
            Ok(parameters) => WrittenResponse::Outputs(outputs.collect(), parameters),
            Err(status) if self.is_own_error => WrittenResponse::Error(status.clone()),
            Err(status) if self.outputs.is_empty() => WrittenResponse::Failed(status.clone()),
            Err(status) => WrittenResponse::FailedWith(status.clone(), outputs.collect()),
        }
    }
}

fn location(request: &WorkerRequest, output: &Output) -> Result<Option<SegmentOffset>, Status> {
    if output.data.is_empty() { Ok(None) } else { Ok(Some(placed(request, output)?.location)) }
}

/// The memory in which the output lies. If the engine left it elsewhere, it is copied.
fn placed(request: &WorkerRequest, output: &Output) -> Result<OutputSpace, Status> {
    let Output { name, data, .. } = output;
    let target = request.target(name);
    if let Some(space) = target.and_then(|target| target.space).filter(|space| request.lies_in(*space, data)) {
        return Ok(space);
    }
    if target.is_some_and(|target| target.fixed) {
        return Err(Status::internal(format!("output '{name}' was not left in the client's memory")));
    }
    let found = request.space(name, data.len())?;
    let (space, mut slot) = found.ok_or_else(|| Status::internal(format!("output '{name}' has no memory")))?;
    let filled = slot.fill_from(0, data, Reason::ModelProcess);
    filled.map_err(|error| Status::internal(format!("output '{name}': {error}")))?;
    Ok(space)
}
