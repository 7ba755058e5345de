//! What decides, in addition to the configuration, which requests share a batch?

use std::sync::Arc;

use nerite_request::{Cancel, Inputs, Parameters, Sequence};
use nerite_tensor::Name;

use crate::Job;

/// Code of a model's author that takes part in forming batches: Triton's custom batching.
///
/// It is called for each batch in the order in which the batches form. The threads that run the model call it, one call at a time. A call may take
/// long. Meanwhile the model's queue still takes requests, and rejects those that have waited too long.
pub trait BatchStrategy: Send {
    /// A batch begins to form. `first` always belongs to it. If [`BatchStrategy::ends`] was not called for the batch before it, that batch has ended
    /// too.
    fn begins(&mut self, first: &WaitingRequest);

    /// Whether the next request may join the batch. `false` closes the batch.
    fn may_join(&mut self, next: &WaitingRequest) -> bool;

    /// The batch is complete, or none of its requests is left.
    fn ends(&mut self);
}

/// What a strategy may read of a waiting request. The request itself may end meanwhile. The memory of its inputs is kept until this value is dropped.
#[derive(Clone, Debug)]
pub struct WaitingRequest {
    /// The id that the client gave the request. May be empty.
    pub id: Name,
    /// Its inputs, in the order of the model's configuration.
    pub inputs: Inputs,
    /// The outputs that the client wants.
    pub wanted: Vec<Name>,
    /// Parameters that the client gave for the model.
    pub parameters: Arc<Parameters>,
    /// The sequence that it belongs to.
    pub sequence: Sequence,
    /// Longest time in the queue in µs, 0 for the model's default.
    pub timeout_us: u64,
    /// The cancellation flag of its client.
    pub cancel: Cancel,
}

impl WaitingRequest {
    /// Describes a job. After [`Job::share_parameters`] this is cheap, however large the client's parameters are.
    pub fn of(job: &Job) -> WaitingRequest {
        WaitingRequest {
            id: job.id().into(),
            inputs: job.inputs().iter().cloned().collect(),
            wanted: job.own_wanted().map(Name::from).collect(),
            parameters: job.shared_parameters(),
            sequence: job.sequence().clone(),
            timeout_us: job.timeout_us(),
            cancel: job.cancel().clone(),
        }
    }
}
