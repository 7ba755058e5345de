//! What happens to a run whose instance shares resources with others?
//!
//! It is decided as any other, and then waits until its instance has what it needs. Meanwhile no other instance of the model is granted to the
//! scheduler: so requests gather there, and later batches are as full as they can be. Its requests wait as they did before: who has waited for too
//! long is rejected here as well.

use std::sync::Arc;

use nerite_backend::{Job, Jobs};
use nerite_schedule::InstanceId;

use super::{Run, Shared, State};
use crate::arrival::Arrivals;
use crate::rates::{Claims, Granted, Turns};
use crate::timer::now_us;

/// The runs of one model version that wait for resources.
pub(super) struct Limited {
    claims: Claims,
    arrivals: Arc<Arrivals>,
    /// Decided, and waiting.
    staged: Vec<Run>,
    /// Instances that are idle and not granted.
    withheld: Vec<InstanceId>,
    /// Others whose turn has come, to be told without the lock.
    turns: Turns,
}

impl Limited {
    pub fn new(claims: Claims, arrivals: Arc<Arrivals>) -> Limited {
        Limited { claims, arrivals, staged: Vec::new(), withheld: Vec::new(), turns: Turns::none() }
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

    /// When the next of the jobs that wait has waited for too long.
    pub fn next_late_us(&self) -> Option<u64> {
        let jobs = self.staged.iter().flat_map(|run| &run.jobs);
        jobs.filter_map(|job| self.arrivals.rejected_at_us(job)).min()
    }

    /// Takes these jobs out of the runs that wait, and the runs that have none left.
    fn take_out(&mut self, is_out: impl Fn(&Job) -> bool) -> (Vec<Job>, Vec<Run>) {
        let mut gone = Vec::new();
        for run in self.staged.iter_mut().filter(|run| run.jobs.iter().any(&is_out)) {
            let (out, wanted): (Jobs, Jobs) = std::mem::take(&mut run.jobs).into_iter().partition(&is_out);
            gone.extend(out);
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
        self.take_out(Job::is_cancelled)
    }

    /// The jobs that have waited for too long, of runs that wait for resources.
    pub(super) fn take_late(&mut self, now_us: u64) -> Vec<Job> {
        let Some(arrivals) = self.limited.as_ref().map(|limited| Arc::clone(&limited.arrivals)) else {
            return Vec::new();
        };
        self.take_out(|job| arrivals.rejected_at_us(job).is_some_and(|at_us| at_us <= now_us))
    }

    fn take_out(&mut self, is_out: impl Fn(&Job) -> bool) -> Vec<Job> {
        let Some(limited) = &mut self.limited else { return Vec::new() };
        let (gone, runs) = limited.take_out(is_out);
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
