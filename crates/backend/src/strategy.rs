//! What else decides which requests share a batch?

use crate::Job;

/// A model's own part in forming batches, beside its configuration: Triton's custom batching.
///
/// It hears of each batch in the order in which that forms. It is called while the queue of its model is locked, so its calls must be short.
pub trait BatchStrategy: Send {
    /// A batch forms, and this is its first request, which is in it whatever the strategy says. An earlier batch that did not end was given up.
    fn begins(&mut self, first: &Job);

    /// Whether the next request may join the batch. No closes it.
    fn may_join(&mut self, next: &Job) -> bool;

    /// The batch is formed, or its requests have gone.
    fn ends(&mut self);
}
