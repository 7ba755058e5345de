//! What does a thread do that runs a model's jobs?

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_backend::{Batch, Instance, Job, now_ns};
use nerite_request::{Code, Status};
use nerite_schedule::InstanceId;

use super::{Run, Shared, State, Work};
use crate::limits::{QUICK_PATIENCE, QUICK_RUNS_IN_A_ROW};
use crate::quickness::Size;

impl Shared {
    /// The system refuses a thread. With other workers the jobs wait for them, without any they must not wait for ever.
    pub(super) fn without_worker(self: &Arc<Self>, error: &std::io::Error) {
        let mut state = self.lock();
        state.workers -= 1;
        while state.workers == 0 {
            let Some(Run { at, instance, jobs, .. }) = state.ready.pop_front() else { break };
            state.give_back(at, instance);
            while let Some(next) = state.next_run() {
                state.ready.push_back(next);
            }
            for job in jobs {
                let text = format!("no thread to run model '{}': {error}; raise the limit on threads", self.name);
                job.refuse(Status::unavailable(text), &*self.meter);
            }
        }
    }

    /// A worker's life.
    pub(super) fn work(self: &Arc<Self>) {
        let mut state = self.lock();
        loop {
            if let Some(run) = state.ready.pop_front() {
                drop(state);
                let (at, instance) = self.run(run);
                state = self.give_back(at, instance);
            } else if state.closed && state.driver.is_drained() {
                state.workers -= 1;
                return;
            } else {
                state.sleeping += 1;
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.sleeping -= 1;
            }
        }
    }

    /// A worker gives an instance back, and has the lock again when what followed is done.
    fn give_back(self: &Arc<Self>, at: InstanceId, instance: Box<dyn Instance>) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.give_back(at, instance);
        let mut work = Work::default();
        // This worker takes the first.
        while let Some(run) = state.next_run() {
            state.ready.push_back(run);
            if state.ready.len() > 1 {
                work.workers += self.wake_worker(&mut state);
            }
        }
        work.rejected.extend(std::iter::from_fn(|| state.driver.next_rejected()));
        self.set_timer(&mut state);
        if state.closed && state.driver.is_drained() {
            self.wake.notify_all();
        }
        if work.workers == 0 && work.rejected.is_empty() {
            return state;
        }
        drop(state);
        self.carry_out(work);
        self.lock()
    }

    /// Runs, and then some of what came meanwhile: nobody was woken for it.
    pub(super) fn run_in_a_row(self: &Arc<Self>, run: Run) {
        nerite_watchdog::running(&self.watched);
        let mut next = Some(run);
        let mut turn = 1;
        while let Some(run) = next {
            let mut workers = 0;
            let mut state;
            match self.begin(run) {
                Ok((at, instance)) => {
                    state = self.lock();
                    state.give_back(at, instance);
                }
                Err(begun) => {
                    state = self.lock();
                    state.ready.push_back(begun);
                    workers = self.wake_worker(&mut state);
                }
            }
            let mut work = self.settle(&mut state, turn < QUICK_RUNS_IN_A_ROW);
            work.workers += workers;
            if state.closed && state.driver.is_drained() {
                self.wake.notify_all();
            }
            drop(state);
            next = self.carry_out(work);
            turn += 1;
        }
    }

    fn without_cancelled(&self, jobs: Vec<Job>) -> Vec<Job> {
        let (gone, jobs): (Vec<_>, Vec<_>) = jobs.into_iter().partition(Job::is_cancelled);
        for job in gone {
            job.refuse(Status::new(Code::Cancelled, ""), &*self.meter);
        }
        jobs
    }

    /// On a worker: from beginning to end, or from where another thread left it.
    fn run(&self, run: Run) -> (InstanceId, Box<dyn Instance>) {
        let Run { at, mut instance, jobs, size, begun } = run;
        let batch = self.batch(jobs);
        if begun.is_none() && batch.jobs.is_empty() {
            return (at, instance);
        }
        let start = begun.unwrap_or_else(now_ns);
        self.catching(|| if begun.is_some() { instance.finish() } else { instance.run(batch) });
        self.note(size, now_ns().saturating_sub(start));
        (at, instance)
    }

    /// On a thread that has other work: gives the run back if it takes longer than such a thread may wait.
    // The run comes back on a path that is taken seldom; a box would cost every request an allocation.
    #[allow(clippy::result_large_err)]
    fn begin(&self, run: Run) -> Result<(InstanceId, Box<dyn Instance>), Run> {
        let Run { at, mut instance, jobs, size, .. } = run;
        let batch = self.batch(jobs);
        if batch.jobs.is_empty() {
            return Ok((at, instance));
        }
        let start = now_ns();
        if self.catching(|| instance.begin(batch, QUICK_PATIENCE)).unwrap_or(true) {
            self.note(size, now_ns().saturating_sub(start));
            return Ok((at, instance));
        }
        Err(Run { at, instance, jobs: Vec::new(), size, begun: Some(start) })
    }

    fn note(&self, size: Option<Size>, ns: u64) {
        if let Some(slow) = self.quickness.note(size, ns) {
            log::info!(
                "model '{}': a run took {} ms; requests with {} input bytes or more run on workers from now on",
                self.name,
                ns / 1_000_000,
                slow.bytes_min
            );
        }
    }

    fn batch(&self, jobs: Vec<Job>) -> Batch {
        let jobs = if jobs.iter().any(Job::is_cancelled) { self.without_cancelled(jobs) } else { jobs };
        Batch { jobs, meter: Arc::clone(&self.meter) }
    }

    /// A runtime that panics loses its jobs, which answer themselves; the server and the other models go on.
    fn catching<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let done = catch_unwind(AssertUnwindSafe(work)).ok();
        if done.is_none() {
            log::error!("model '{}' panicked; its request was answered with an error", self.name);
        }
        done
    }
}
