//! Which parts of a request are kept so that it can run again?
//!
//! This is Triton's `TRITONSERVER_REQUEST_RELEASE_RESCHEDULE`. An instance gives a request back during a run, instead of answering it. The request
//! becomes the next one of its sequence, and the same client gets the result.

use nerite_request::{Client, Parameters, Sequence};

/// The error of a request whose model does not run iterative sequences.
pub(crate) const NOT_ITERATIVE: &str = "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to \
     handle such a flag.";

/// The parts of a request other than its inputs and its responder.
pub(crate) struct Rest {
    pub(crate) parameters: Parameters,
    pub(crate) sequence: Sequence,
    pub(crate) priority: u64,
    pub(crate) timeout_us: u64,
    pub(crate) client: Client,
    pub(crate) own: Own,
}

/// How many inputs and outputs of a request came from the client. The server added those after them for one run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Own {
    pub(crate) inputs: usize,
    pub(crate) wanted: usize,
    /// Whether the server chose its sequence.
    pub(crate) has_own_sequence: bool,
}
