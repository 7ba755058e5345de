//! Where would an output go, and does it fit there?

use nerite_memory::Place;
use nerite_request::Status;

/// Where an output would go, asked before it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputPlace {
    /// On which side of which bus.
    pub place: Place,
    /// Bytes the client left for it; `None` where memory is made to measure.
    pub capacity: Option<usize>,
}

/// The client's place for an output has `have` bytes of the `need` that the result has; in Triton's words.
pub(crate) fn too_small(name: &str, have: usize, need: usize) -> Status {
    Status::internal(format!(
        "shared memory size specified with the request for output '{name}' ({have} bytes) should be at least {need} bytes \
         to hold the results"
    ))
}
