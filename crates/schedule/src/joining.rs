//! What else decides which requests share a batch?
//!
//! A model may have a rule of its own beside its policy, which answers at once. It may also have a strategy, which takes time: it is asked
//! [questions](Question), and no batch of the model starts while one is unanswered. The rule and the strategy are called for the first request of
//! each batch, for each request that may join it, and at its end. So they can count what is in a batch:
//!
//! ```text
//!   begins(1)   may_join([1], 2) yes   may_join([1], 3) no   ends()
//! ```

use crate::event::Ticket;

/// A model's own rule for which jobs share a batch.
///
/// If a job may not join, the batch is closed and runs as soon as an instance is free. The first job of a batch is always in it, so no rule can keep
/// a job from running.
pub trait JoinRule<J> {
    /// A batch begins to form with this job. If [`JoinRule::ends`] was not called for the batch before, that batch was given up, and its jobs that
    /// still wait are passed again.
    fn begins(&mut self, _first: &J) {}

    /// Whether the next job may join. `batch` has the first job of the batch, and may have the others.
    fn may_join(&mut self, batch: &[&J], next: &J) -> bool;

    /// The batch is complete, or its jobs do not wait any more.
    fn ends(&mut self) {}
}

impl<J, F: FnMut(&[&J], &J) -> bool> JoinRule<J> for F {
    fn may_join(&mut self, batch: &[&J], next: &J) -> bool {
        self(batch, next)
    }
}

/// A question to a strategy. Questions come in the order of the calls of a [`JoinRule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question<J> {
    /// As [`JoinRule::begins`]. The answer is ignored.
    Begins(J),
    /// Whether this job may join the batch that began last.
    MayJoin(J),
    /// As [`JoinRule::ends`]. The answer is ignored.
    Ends,
}

/// A model's rule and strategy as a scheduler calls them: with tickets in place of jobs.
pub trait Joins {
    /// As [`JoinRule::begins`]. False: this is not answered yet. The scheduler starts no batch, and asks again at
    /// [`Event::Answered`](crate::Event::Answered).
    fn begins(&mut self, first: Ticket) -> bool;

    /// As [`JoinRule::may_join`]. `None`: this is not answered yet, as for [`Joins::begins`].
    fn may_join(&mut self, batch: &[Ticket], next: Ticket) -> Option<bool>;

    /// As [`JoinRule::ends`].
    fn ends(&mut self);
}
