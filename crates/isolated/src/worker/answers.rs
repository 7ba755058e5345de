//! How is an engine's response told to the server?

use nerite_memory::Reason;
use nerite_process::packets::{Outcome, SegmentOffset, TensorAt};
use nerite_request::{InferResponse, Output, Status};

use super::requests::Asked;
use super::talk::OutputSpace;

/// A response, and where each of its outputs lies; or the failure.
pub(super) struct Answered(Result<(InferResponse, Vec<Option<SegmentOffset>>), Status>);

impl Answered {
    pub(super) fn of(asked: &Asked, response: Result<InferResponse, Status>) -> Answered {
        let response = match response {
            Ok(response) => response,
            Err(error) => return Answered(Err(super::cut(error))),
        };
        let spots: Result<Vec<Option<SegmentOffset>>, Status> =
            response.outputs.iter().map(|output| spot(asked, output)).collect();
        Answered(spots.map(|spots| (response, spots)).map_err(super::cut))
    }

    /// As a packet tells it.
    pub(super) fn told(&self) -> Outcome<'_> {
        let (response, spots) = match &self.0 {
            Ok(told) => told,
            Err(status) => return Outcome::Failed(status.clone()),
        };
        let outputs = response.outputs.iter().zip(spots).map(|(output, spot)| {
            let Output { name, datatype, shape, data, .. } = output;
            TensorAt { name, datatype: *datatype, shape: shape.as_slice(), spot: *spot, bytes: data.len() }
        });
        Outcome::Outputs(outputs.collect(), &response.parameters)
    }
}

fn spot(asked: &Asked, output: &Output) -> Result<Option<SegmentOffset>, Status> {
    if output.data.is_empty() { Ok(None) } else { Ok(Some(placed(asked, output)?.spot)) }
}

/// Where the output lies, or is copied to, if the engine left it in memory of its own.
fn placed(asked: &Asked, output: &Output) -> Result<OutputSpace, Status> {
    let Output { name, data, .. } = output;
    let place = asked.place(name);
    if let Some(space) = place.and_then(|place| place.space).filter(|space| asked.lies_in(*space, data)) {
        return Ok(space);
    }
    if place.is_some_and(|place| place.fixed) {
        return Err(Status::internal(format!("output '{name}' was not left in the client's place")));
    }
    let found = asked.space(name, data.len())?;
    let (space, mut slot) = found.ok_or_else(|| Status::internal(format!("output '{name}' has no place")))?;
    let filled = slot.fill_from(0, data, Reason::ModelProcess);
    filled.map_err(|error| Status::internal(format!("output '{name}': {error}")))?;
    Ok(space)
}
