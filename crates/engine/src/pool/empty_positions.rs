//! Which requests fill the positions of a batch whose sequences have none?

use std::sync::Arc;

use nerite_backend::Job;
use nerite_schedule::RunSlot;

use super::{Queued, State};
use crate::run_on::RunsTogether;

impl State {
    /// Requests for the empty positions of a batch, and what stops them. `None` if the batch has no empty positions.
    pub(super) fn empty_positions(
        &self,
        slots: &[RunSlot<Queued>],
    ) -> (impl Iterator<Item = Job> + use<>, Option<Arc<RunsTogether>>) {
        let jobs = || {
            slots.iter().filter_map(|slot| match slot {
                RunSlot::Job(queued, _) => Some(&queued.job),
                RunSlot::Empty => None,
            })
        };
        let empty = slots.iter().filter(|slot| matches!(slot, RunSlot::Empty));
        let made: Vec<Job> = match (&self.sequences, jobs().next()) {
            (Some(sequences), Some(neighbour)) => empty.map(|_| sequences.empty_position(neighbour)).collect(),
            _ => Vec::new(),
        };
        let together = (!made.is_empty()).then(|| RunsTogether::new(jobs().count(), made.iter()));
        (made.into_iter(), together)
    }
}
