//! What else decides which requests share a batch?

use std::sync::Arc;

use nerite_request::{Cancel, Inputs, Parameters, Sequence};
use nerite_tensor::Name;

use crate::Job;

/// A model's own part in forming batches, beside its configuration: Triton's custom batching.
///
/// It hears of each batch in the order in which that forms. It is called by the threads that run the model, one call at a time, and may take long:
/// meanwhile the model's queue takes requests, and rejects those that have waited too long.
pub trait BatchStrategy: Send {
    /// A batch forms, and this is its first request, which is in it whatever the strategy says. An earlier batch that did not end was given up, or ends
    /// now.
    fn begins(&mut self, first: &WaitingRequest);

    /// Whether the next request may join the batch. No closes it.
    fn may_join(&mut self, next: &WaitingRequest) -> bool;

    /// The batch is formed, or its requests have gone.
    fn ends(&mut self);
}

/// What a strategy may know of a request that waits. The request itself may end meanwhile; the memory of its inputs stays as long as this.
#[derive(Clone, Debug)]
pub struct WaitingRequest {
    /// The client's name for it; may be empty.
    pub id: Name,
    /// Its inputs, in the client's order.
    pub inputs: Inputs,
    /// The outputs that the client wants.
    pub wanted: Vec<Name>,
    /// Parameters that the client gave for the model.
    pub parameters: Arc<Parameters>,
    /// The sequence it belongs to.
    pub sequence: Sequence,
    /// Longest time in the queue in µs, 0 for the model's default.
    pub timeout_us: u64,
    /// The flag of its client.
    pub cancel: Cancel,
}

impl WaitingRequest {
    /// That of a job. [`Job::share_parameters`] makes it cheap however much a client's parameters say.
    pub fn of(job: &Job) -> WaitingRequest {
        WaitingRequest {
            id: job.id().into(),
            inputs: job.inputs().iter().cloned().collect(),
            wanted: job.own_wanted().map(Name::from).collect(),
            parameters: job.parameters.shared(),
            sequence: job.sequence().clone(),
            timeout_us: job.timeout_us(),
            cancel: job.cancel().clone(),
        }
    }
}
