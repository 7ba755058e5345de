//! Which outputs did a request place in memory that no response has had?
//!
//! Their memory keeps its earlier bytes, which the client would read as the result.

use nerite_request::{Output, Status, WantedOutputs};
use smallvec::SmallVec;

use super::Responder;

/// The indices of outputs that have memory of the client, each with whether a response had it. In ascending order. Empty for most requests.
#[derive(Debug, Default)]
pub(super) struct UnmadeOutputs(SmallVec<[(usize, bool); 2]>);

impl UnmadeOutputs {
    /// All outputs that have memory of the client.
    fn of(wanted: &WantedOutputs) -> UnmadeOutputs {
        let placed = wanted.indexed().filter(|(_, wanted)| wanted.slot.is_some());
        let mut placed: SmallVec<_> = placed.map(|(index, _)| (index, false)).collect();
        placed.sort_unstable();
        UnmadeOutputs(placed)
    }

    /// Notes the outputs of a response.
    pub fn note(&mut self, made: &[Output]) {
        if self.0.is_empty() {
            return;
        }
        for output in made {
            if let Ok(at) = self.0.binary_search_by_key(&output.index, |(index, _)| *index) {
                self.0[at].1 = true;
            }
        }
        self.0.retain(|(_, is_made)| !*is_made);
    }
}

impl Responder {
    /// As [`crate::Job::require_placed`].
    pub(crate) fn require_placed(&mut self) {
        self.unmade = UnmadeOutputs::of(&self.wanted);
    }

    /// Fails if an output that the client placed in memory was in no response.
    pub(super) fn check_made(&self) -> Result<(), Status> {
        let first = self.unmade.0.first().and_then(|(index, _)| self.wanted.find(*index));
        let (Some((_, output)), Some(in_flight)) = (first, &self.in_flight) else { return Ok(()) };
        // The Python client knows this text, and runs a prepared call again.
        Err(Status::internal(format!(
            "model '{}' did not make output '{}', which the request placed in memory: nothing was written there. Request an output \
             without memory if the model may leave it out",
            in_flight.name(),
            output.name
        )))
    }
}
