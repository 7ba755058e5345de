//! Which jobs may share a batch, and which thread calls the model's strategy?
//!
//! The configuration's rules are applied under the lock of the pool. A strategy is code of a library, so a worker calls it without that lock. A
//! question arises only while an instance is idle, so a worker is free for it. If a strategy hangs, only the batches of its model stop. Requests are
//! still queued, cancelled, and rejected at their deadlines.

use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_backend::{BatchStrategy, WaitingRequest};
use nerite_schedule::{JoinRule, Question};

use super::{Queued, Shared, State, Work};
use crate::arrival::Arrivals;
use crate::timer::now_us;

/// The rules of a model's configuration.
pub(super) struct JoinRules {
    pub arrivals: Arc<Arrivals>,
}

impl JoinRule<Queued> for JoinRules {
    fn may_join(&mut self, batch: &[&Queued], next: &Queued) -> bool {
        // As in Triton, a strategy is not called for a request whose shapes do not fit.
        batch.first().is_none_or(|head| self.arrivals.may_join(&head.job, &next.job))
    }
}

impl State {
    /// The next question to the strategy. Call the strategy without the lock.
    pub(super) fn take_question(&mut self) -> Option<Question<WaitingRequest>> {
        Some(match self.driver.next_question()? {
            Question::Begins(first) => Question::Begins(WaitingRequest::of(&first.job)),
            Question::MayJoin(next) => Question::MayJoin(WaitingRequest::of(&next.job)),
            Question::Ends => Question::Ends,
        })
    }

    /// How many workers have something to do.
    pub(super) fn wanted_workers(&self) -> usize {
        self.ready.len() + usize::from(self.driver.has_question())
    }
}

impl Shared {
    /// Passes the question to the strategy. If the strategy panics, the request does not join.
    pub(super) fn consult_strategy(&self, question: Question<WaitingRequest>) -> bool {
        let mut strategy = self.strategy.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(strategy) = &mut *strategy else { return true };
        let answer = self.catching(|| match &question {
            Question::Begins(first) => {
                strategy.begins(first);
                true
            }
            Question::MayJoin(next) => strategy.may_join(next),
            Question::Ends => {
                strategy.ends();
                true
            }
        });
        answer.unwrap_or(false)
    }

    /// Reports a strategy's answer to the scheduler, on a worker, and does the work that follows from it. Returns with the lock held.
    pub(super) fn pass_answer(self: &Arc<Self>, says: bool) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.driver.answered(says, now_us());
        let mut work = Work::default();
        while let Some(run) = state.next_run() {
            state.ready.push_back(run);
            // This worker takes the first run, unless it has to call the strategy again for another batch.
            if state.ready.len() > 1 || state.driver.has_urgent_question() {
                work.workers += self.wake_worker(&mut state);
            }
        }
        self.take_rest(&mut state, &mut work);
        drop(state);
        self.carry_out(work);
        self.lock()
    }

    /// The strategy of a pool that is closed, to be dropped.
    pub(super) fn take_strategy(&self) -> Option<Box<dyn BatchStrategy>> {
        self.strategy.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
