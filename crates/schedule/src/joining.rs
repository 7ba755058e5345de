//! Who else has a say in which requests share a batch?
//!
//! A model may have a rule of its own beside its policy. The rule hears of each batch from its first request to its end, so it may count what is in it:
//!
//! ```text
//!   begins(1)   may_join([1], 2) yes   may_join([1], 3) no   ends()
//! ```

use crate::event::Ticket;

/// A model's own rule for which jobs share a batch.
///
/// A no closes the batch: it runs as soon as an instance is free. The first job of a batch is always in it, so no rule can keep a job from running.
pub trait JoinRule<J> {
    /// A batch forms, and this is its first job. An earlier batch that did not end was given up: its jobs are told again.
    fn begins(&mut self, _first: &J) {}

    /// Whether the next job may join. `batch` has the first job of the batch, and may have the others.
    fn may_join(&mut self, batch: &[&J], next: &J) -> bool;

    /// The batch is formed, or its jobs have gone.
    fn ends(&mut self) {}
}

impl<J, F: FnMut(&[&J], &J) -> bool> JoinRule<J> for F {
    fn may_join(&mut self, batch: &[&J], next: &J) -> bool {
        self(batch, next)
    }
}

/// The same for a scheduler, which knows tickets only.
pub trait Joins {
    /// As [`JoinRule::begins`].
    fn begins(&mut self, first: Ticket);

    /// As [`JoinRule::may_join`].
    fn may_join(&mut self, batch: &[Ticket], next: Ticket) -> bool;

    /// As [`JoinRule::ends`].
    fn ends(&mut self);
}
