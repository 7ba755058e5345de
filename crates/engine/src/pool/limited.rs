//! What happens to a run whose instance shares resources with others?
//!
//! It is decided as any other, and then waits until its instance has what it needs. Meanwhile no other instance of the model is granted to the
//! scheduler: so requests gather there, and later batches are as full as they can be.

use std::sync::Arc;

use nerite_backend::{Job, Jobs};
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

    /// Takes the jobs whose clients have gone out of the runs that wait, and the runs that have none left.
    fn take_cancelled(&mut self) -> (Vec<Job>, Vec<Run>) {
        let mut gone = Vec::new();
        for run in self.staged.iter_mut().filter(|run| run.jobs.iter().any(Job::is_cancelled)) {
            let (cancelled, wanted): (Jobs, Jobs) =
                std::mem::take(&mut run.jobs).into_iter().partition(Job::is_cancelled);
            gone.extend(cancelled);
            run.jobs = wanted;
        }
        let claims = &self.claims;
        let turns = &mut self.turns;
        // One that was granted meanwhile goes on when it is told, with nothing to run.
        let is_over =
            |run: &mut Run| run.jobs.is_empty() && claims.give_up(run.at).map(|more| turns.and(more)).is_some();
        let over = self.staged.extract_if(.., is_over).collect();
        (gone, over)
    }

    /// Instances that were withheld, if nothing waits any more.
    fn take_free(&mut self) -> Vec<InstanceId> {
        if self.staged.is_empty() { std::mem::take(&mut self.withheld) } else { Vec::new() }
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
    /// The jobs whose clients have gone, of runs that wait for resources. An instance that is left with none is idle again.
    pub(super) fn take_cancelled(&mut self) -> Vec<Job> {
        let Some(limited) = &mut self.limited else { return Vec::new() };
        let (gone, runs) = limited.take_cancelled();
        let free = limited.take_free();
        for at in free {
            self.driver.grant(at, now_us());
        }
        for run in runs {
            self.give_back(run.at, run.instance);
        }
        gone
    }

    /// The instance has what it needs: its run is ready. What was withheld may start.
    fn unstage(&mut self, at: InstanceId) -> bool {
        let Some(limited) = &mut self.limited else { return false };
        let Some(place) = limited.staged.iter().position(|run| run.at == at) else {
            limited.release(at);
            return false;
        };
        let run = limited.staged.swap_remove(place);
        let free = limited.take_free();
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
