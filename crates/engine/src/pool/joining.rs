//! Which jobs may share a batch?

use std::sync::Arc;

use nerite_backend::BatchStrategy;
use nerite_schedule::JoinRule;

use super::Queued;
use crate::arrival::Arrivals;

/// The rules of one model: its configuration's, and those of its strategy if it has one.
pub(super) struct JoinRules {
    pub arrivals: Arc<Arrivals>,
    pub strategy: Option<Box<dyn BatchStrategy>>,
}

impl JoinRule<Queued> for JoinRules {
    fn begins(&mut self, first: &Queued) {
        if let Some(strategy) = &mut self.strategy {
            strategy.begins(&first.job);
        }
    }

    fn may_join(&mut self, batch: &[&Queued], next: &Queued) -> bool {
        let fits = batch.first().is_none_or(|head| self.arrivals.may_join(&head.job, &next.job));
        // As in Triton, a request whose shapes do not fit is not asked about.
        fits && self.strategy.as_mut().is_none_or(|strategy| strategy.may_join(&next.job))
    }

    fn ends(&mut self) {
        if let Some(strategy) = &mut self.strategy {
            strategy.ends();
        }
    }
}
