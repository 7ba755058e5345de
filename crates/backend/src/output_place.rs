//! In which memory would an output lie, and does it fit there?

use nerite_memory::Place;
use nerite_request::Status;

/// Where an output will lie, for a runtime that has to know before it makes the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputPlace {
    /// The host or a device.
    pub place: Place,
    /// The size of the memory that the client named for the output. `None` if memory of the output's size is allocated.
    pub capacity: Option<usize>,
}

/// The error for a client's memory of `have` bytes and a result of `need` bytes, with Triton's text.
pub fn too_small(name: &str, have: usize, need: usize) -> Status {
    Status::internal(format!(
        "shared memory size specified with the request for output '{name}' ({have} bytes) should be at least {need} bytes \
         to hold the results"
    ))
}
