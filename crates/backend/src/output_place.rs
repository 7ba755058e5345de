//! In which memory would an output lie, and does it fit there?

use nerite_memory::Place;
use nerite_request::Status;

/// Where an output will be, for a runtime that asks before it makes the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputPlace {
    /// The host or a device.
    pub place: Place,
    /// The size of the memory that the client named for it. `None` if memory is allocated in the output's size.
    pub capacity: Option<usize>,
}

/// The error for a client's memory of `have` bytes and a result of `need` bytes, with Triton's text.
pub(crate) fn too_small(name: &str, have: usize, need: usize) -> Status {
    Status::internal(format!(
        "shared memory size specified with the request for output '{name}' ({have} bytes) should be at least {need} bytes \
         to hold the results"
    ))
}
