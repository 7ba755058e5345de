//! What happens to a run whose instance shares resources with others?
//!
//! It is decided as any other, and then waits until its instance has what it needs. Meanwhile no other instance of the model is granted to the
//! scheduler: so requests gather there, and later batches are as full as they can be.

use std::sync::Arc;

use nerite_schedule::InstanceId;

use super::{Run, Shared, State};
use crate::rates::{Claims, Granted, Turns};
use crate::timer::now_us;

/// The runs of one model version that wait for resources.
pub(super) struct Limited {
    claims: Claims,
    /// Decided, and waiting.
    staged: Vec<Run>,
    /// Instances that are idle and not granted.
    withheld: Vec<InstanceId>,
    /// Others whose turn has come, to be told without the lock.
    turns: Turns,
}

impl Limited {
    pub fn new(claims: Claims) -> Limited {
        Limited { claims, staged: Vec::new(), withheld: Vec::new(), turns: Turns::none() }
    }

    /// Who is told when the turn of an instance comes.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// The run, if it may go on now.
    pub fn pass(&mut self, run: Run) -> Option<Run> {
        let (may_run, turns) = self.claims.request(run.at);
        self.turns.and(turns);
        if may_run {
            return Some(run);
        }
        self.staged.push(run);
        None
    }

    /// An instance has run. Others may have their turn by that.
    pub fn release(&mut self, at: InstanceId) {
        let turns = self.claims.release(at);
        self.turns.and(turns);
    }

    /// Whether an idle instance is to be granted now. If not, it is withheld.
    pub fn may_grant(&mut self, at: InstanceId) -> bool {
        if self.staged.is_empty() {
            return true;
        }
        self.withheld.push(at);
        false
    }

    /// Requests that wait for resources.
    pub fn waiting(&self) -> usize {
        self.staged.iter().map(|run| run.jobs.len()).sum()
    }

    /// Who is to be told.
    pub fn take_turns(&mut self) -> Turns {
        std::mem::replace(&mut self.turns, Turns::none())
    }
}

impl State {
    /// The instance has what it needs: its run is ready. What was withheld may start.
    fn unstage(&mut self, at: InstanceId) -> bool {
        let Some(limited) = &mut self.limited else { return false };
        let Some(place) = limited.staged.iter().position(|run| run.at == at) else {
            limited.release(at);
            return false;
        };
        let run = limited.staged.swap_remove(place);
        let free = if limited.staged.is_empty() { std::mem::take(&mut limited.withheld) } else { Vec::new() };
        self.ready.push_back(run);
        for at in free {
            self.driver.grant(at, now_us());
        }
        true
    }
}

impl Granted for Shared {
    fn granted(self: Arc<Self>, at: InstanceId) {
        let mut state = self.lock();
        let mut workers = 0;
        if state.unstage(at) {
            workers = self.wake_worker(&mut state);
        }
        let mut work = self.settle(&mut state, false);
        work.workers += workers;
        drop(state);
        self.carry_out(work);
    }
}
