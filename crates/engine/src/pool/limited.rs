//! What happens to a run whose instance shares resources with others?
//!
//! The scheduler decides on such a run as on any other. The run then waits until its instance has the resources. Meanwhile no other instance of the
//! model that needs one of them is granted to the scheduler, so requests gather in the queue. There clients take turns, and later batches are as full
//! as they can be. The timeouts of the queue apply to the requests of the run as well: a request that has waited too long is rejected here.

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
    /// Runs that wait for resources.
    staged: Vec<Run>,
    /// Instances that are idle and not granted.
    withheld: Vec<InstanceId>,
    /// Instances of other models that were granted resources. They are notified without the lock.
    turns: Turns,
}

impl Limited {
    pub fn new(claims: Claims, arrivals: Arc<Arrivals>) -> Limited {
        Limited { claims, arrivals, staged: Vec::new(), withheld: Vec::new(), turns: Turns::none() }
    }

    /// The claims of the instances on the resources.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Requests the resources of a run. Returns the run if it has them now, and keeps it otherwise.
    pub fn pass(&mut self, run: Run) -> Option<Run> {
        let (may_run, turns) = self.claims.request(run.at);
        self.turns.and(turns);
        if may_run {
            return Some(run);
        }
        self.staged.push(run);
        None
    }

    /// Gives back the resources of an instance after its run. Others may get them now.
    pub fn release(&mut self, at: InstanceId) {
        let turns = self.claims.release(at);
        self.turns.and(turns);
    }

    /// Whether an idle instance may be granted to the scheduler now. If not, it is withheld.
    pub fn may_grant(&mut self, at: InstanceId) -> bool {
        let may_grant = !self.competes(at);
        if !may_grant {
            self.withheld.push(at);
        }
        may_grant
    }

    /// Whether a run waits for a resource that this instance needs.
    fn competes(&self, at: InstanceId) -> bool {
        self.staged.iter().any(|run| self.claims.compete(run.at, at))
    }

    /// The earliest time at which one of the waiting jobs has waited too long.
    pub fn next_late_us(&self) -> Option<u64> {
        let jobs = self.staged.iter().flat_map(|run| &run.jobs);
        jobs.filter_map(|job| self.arrivals.rejected_at_us(job)).min()
    }

    /// Removes these jobs from the waiting runs, and returns them with the runs that have no jobs left.
    fn take_out(&mut self, is_out: impl Fn(&Job) -> bool) -> (Vec<Job>, Vec<Run>) {
        let mut gone = Vec::new();
        for run in self.staged.iter_mut().filter(|run| run.jobs.iter().any(&is_out)) {
            let (out, wanted): (Jobs, Jobs) = std::mem::take(&mut run.jobs).into_iter().partition(&is_out);
            gone.extend(out);
            run.jobs = wanted;
        }
        let claims = &self.claims;
        let turns = &mut self.turns;
        // A run that was granted its resources meanwhile stays: it continues when it is notified, without jobs.
        let is_over =
            |run: &mut Run| run.jobs.is_empty() && claims.give_up(run.at).map(|more| turns.and(more)).is_some();
        let over = self.staged.extract_if(.., is_over).collect();
        (gone, over)
    }

    /// A withheld instance that may be granted to the scheduler, because no run waits any more for a resource that it needs.
    pub fn next_withheld(&mut self) -> Option<InstanceId> {
        let place = self.withheld.iter().position(|at| !self.competes(*at))?;
        Some(self.withheld.swap_remove(place))
    }

    /// Requests that wait for resources.
    pub fn waiting(&self) -> usize {
        self.staged.iter().map(|run| run.jobs.len()).sum()
    }

    /// Takes the instances to notify.
    pub fn take_turns(&mut self) -> Turns {
        std::mem::replace(&mut self.turns, Turns::none())
    }
}

impl State {
    /// Removes the jobs whose clients have gone, and that do not run on, from the runs that wait for resources. Returns these jobs. The instance of a
    /// run without jobs becomes idle.
    pub(super) fn take_cancelled(&mut self) -> Vec<Job> {
        self.take_out(|job| job.is_cancelled() && !job.outlasts_client())
    }

    /// Removes the jobs that have waited too long from the runs that wait for resources. Returns these jobs.
    pub(super) fn take_late(&mut self, now_us: u64) -> Vec<Job> {
        let Some(arrivals) = self.limited.as_ref().map(|limited| Arc::clone(&limited.arrivals)) else {
            return Vec::new();
        };
        self.take_out(|job| arrivals.rejected_at_us(job).is_some_and(|at_us| at_us <= now_us))
    }

    /// Call this when a run waits for resources. Idle instances that need them must not take more requests out of the queue.
    pub(super) fn withhold_idle(&mut self) {
        let Some(limited) = &mut self.limited else { return };
        let now_us = now_us();
        for at in (0..self.instances.len()).map(InstanceId) {
            if limited.competes(at) && self.driver.withdraw(at, now_us) {
                limited.withheld.push(at);
            }
        }
    }

    fn take_out(&mut self, is_out: impl Fn(&Job) -> bool) -> Vec<Job> {
        let Some(limited) = &mut self.limited else { return Vec::new() };
        let (gone, runs) = limited.take_out(is_out);
        for run in runs {
            self.give_back(run.at, run.instance);
        }
        gone
    }

    /// Makes the run of an instance that has its resources ready. Call [`State::next_run`] then.
    fn unstage(&mut self, at: InstanceId) -> bool {
        let Some(limited) = &mut self.limited else { return false };
        let Some(place) = limited.staged.iter().position(|run| run.at == at) else {
            limited.release(at);
            return false;
        };
        let run = limited.staged.swap_remove(place);
        self.ready.push_back(run);
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
