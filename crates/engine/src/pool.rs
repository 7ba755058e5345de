//! On which thread does a job run?
//!
//! ```text
//!   submit ──► the scheduler says run, requests of this size are quick ──► here, on the caller's thread
//!      │                                                                     └─ then what the scheduler says next
//!      └─────► the scheduler says run, or wait ──► a worker (made when first needed, at most one per instance)
//! ```
//! Who runs, when and on which instance is the scheduler's decision; threads, the lock and the clock are ours. On a busy or
//! small machine the number of wake-ups decides the latency of small requests, so the quick path makes none. Whether a request
//! is quick is what [`Quickness`] knows from the model's own statement and from runs that were measured; nobody configures it.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nerite_backend::{Batch, CostBound, Instance, Job, Meter, now_ns};
use nerite_request::{Code, Status};
use nerite_schedule::{Arrival, InstanceId, Refusal, Scheduler, Step, Ticket};

use crate::limits::{QUICK_PATIENCE, QUICK_RUNS_IN_A_ROW};
use crate::quickness::{Quickness, Size};

/// The instances of one model version and the jobs that wait for them.
pub struct Pool(Arc<Shared>);

struct Shared {
    name: String,
    /// The same for the watchdog.
    watched: nerite_watchdog::Name,
    state: Mutex<State>,
    wake: Condvar,
    meter: Arc<dyn Meter>,
    quickness: Quickness,
    threads: Mutex<Vec<JoinHandle<()>>>,
    workers_max: usize,
}

struct State {
    scheduler: Box<dyn Scheduler + Send>,
    last: Ticket,
    /// Jobs by ticket, until the scheduler lets them run.
    waiting: HashMap<Ticket, (Job, Option<Size>)>,
    /// `None` while an instance runs.
    instances: Vec<Option<Box<dyn Instance>>>,
    /// Decided, and waiting for a worker.
    ready: VecDeque<Run>,
    /// When the scheduler wants to be asked although nothing happened.
    due_us: Option<u64>,
    workers: usize,
    sleeping: usize,
    closed: bool,
}

/// Jobs on their way to their instance.
struct Run {
    at: InstanceId,
    instance: Box<dyn Instance>,
    jobs: Vec<Job>,
    /// How large the job is, if it is one alone. Several together always run on a worker.
    size: Option<Size>,
    /// When the jobs were begun, if they were: the instance has them, and is waited for.
    begun: Option<u64>,
}

impl Pool {
    /// A pool over these instances, whose runs this bounds, ordered by this scheduler; `name` names its threads.
    pub fn new(
        name: &str,
        instances: Vec<Box<dyn Instance>>,
        bound: CostBound,
        scheduler: Box<dyn Scheduler + Send>,
        meter: Arc<dyn Meter>,
    ) -> Pool {
        let workers_max = instances.len();
        let state = State {
            scheduler,
            last: Ticket(0),
            waiting: HashMap::new(),
            instances: instances.into_iter().map(Some).collect(),
            ready: VecDeque::new(),
            due_us: None,
            workers: 0,
            sleeping: 0,
            closed: false,
        };
        Pool(Arc::new(Shared {
            name: name.to_owned(),
            watched: nerite_watchdog::Name::new(name),
            state: Mutex::new(state),
            wake: Condvar::new(),
            meter,
            quickness: Quickness::new(bound),
            threads: Mutex::default(),
            workers_max,
        }))
    }

    /// Runs the job now, here, if that is known to be quick; else sees to it that a worker does. Gives it back, with the
    /// reason, if the scheduler refuses it.
    // The job comes back whole on a path that is hardly ever taken; a box would cost every request an allocation.
    #[allow(clippy::result_large_err)]
    pub fn submit(&self, job: Job) -> Result<(), (Job, Refusal)> {
        let shared = &self.0;
        let size = shared.quickness.size(&job);
        let quick = shared.quickness.is_quick(size);
        let mut state = shared.lock();
        let ticket = Ticket(state.last.0 + 1);
        let arrival = Arrival { ticket, rows: job.rows().max(1) };
        let step = match state.scheduler.arrive(arrival, now_us()) {
            Ok(step) => step,
            Err(refusal) => return Err((job, refusal)),
        };
        state.last = ticket;
        state.waiting.insert(ticket, (job, size));
        match state.take(step) {
            Some(run) if quick => {
                drop(state);
                shared.run_in_a_row(run);
            }
            Some(run) => {
                state.ready.push_back(run);
                shared.wake_one(state);
            }
            None if state.due_us.is_some() => shared.wake_one(state),
            None => {}
        }
        Ok(())
    }

    /// Jobs that wait for an instance.
    pub fn waiting(&self) -> usize {
        self.0.lock().waiting.len()
    }

    /// Takes no more jobs; those that wait are still run. Returns when the last has been, so not on a front end's thread.
    pub fn close(&self) {
        let mut state = self.0.lock();
        state.scheduler.stop();
        state.closed = true;
        self.0.wake.notify_all();
        while !state.scheduler.is_drained() {
            state = self.0.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        self.0.wake.notify_all();
        let threads = std::mem::take(&mut *self.0.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A worker catches what its instance throws, so joining it cannot fail in a way that matters here.
            drop(thread.join());
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.scheduler.stop();
        state.closed = true;
        drop(state);
        self.0.wake.notify_all();
    }
}

impl State {
    /// The jobs and the instance that a step names; `None` if it names none.
    fn take(&mut self, step: Step) -> Option<Run> {
        let batch = match step {
            Step::Run(batch) => batch,
            Step::Wait { until_us } => {
                self.due_us = until_us;
                return None;
            }
        };
        let tickets = std::iter::once(batch.oldest).chain(batch.others);
        let (mut jobs, mut size) = (Vec::with_capacity(1), None);
        for (job, own) in tickets.filter_map(|ticket| self.waiting.remove(&ticket)) {
            size = own.filter(|_| jobs.is_empty());
            jobs.push(job);
        }
        let instance = self.instances.get_mut(batch.instance.0).and_then(Option::take);
        let instance = instance.expect("the scheduler names instances that it was told are idle");
        Some(Run { at: batch.instance, instance, jobs, size, begun: None })
    }

    /// Takes an instance back and asks what comes next on it.
    fn give_back(&mut self, at: InstanceId, instance: Box<dyn Instance>) -> Option<Run> {
        if let Some(place) = self.instances.get_mut(at.0) {
            *place = Some(instance);
        }
        let step = self.scheduler.idle(at, now_us());
        self.take(step)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees to it that a worker looks at what is ready.
    fn wake_one(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.sleeping > 0 || state.workers >= self.workers_max {
            // A closer waits on the same condition; only all of them are sure to include a worker.
            if state.closed {
                self.wake.notify_all();
            } else {
                self.wake.notify_one();
            }
            return;
        }
        state.workers += 1;
        drop(state);
        let shared = Arc::clone(self);
        match std::thread::Builder::new().name(self.name.clone()).spawn(move || shared.work()) {
            Ok(thread) => self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread),
            Err(error) => self.without_worker(&error),
        }
    }

    /// The system refuses a thread. With other workers the jobs wait for them, without any they must not wait for ever.
    fn without_worker(&self, error: &std::io::Error) {
        let mut state = self.lock();
        state.workers -= 1;
        while state.workers == 0 {
            let Some(Run { at, instance, jobs, .. }) = state.ready.pop_front() else { return };
            if let Some(next) = state.give_back(at, instance) {
                state.ready.push_back(next);
            }
            for job in jobs {
                let text = format!("no thread to run model '{}': {error}; raise the limit on threads", self.name);
                job.refuse(Status::unavailable(text), &*self.meter);
            }
        }
    }

    /// A worker's life.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(run) = state.ready.pop_front() {
                drop(state);
                self.run_while_there_is_more(run);
                state = self.lock();
            } else if state.closed && state.scheduler.is_drained() {
                state.workers -= 1;
                return;
            } else {
                state = self.sleep(state);
            }
        }
    }

    /// Waits for something to be ready, or for the moment at which the scheduler wants to be asked.
    fn sleep<'s>(&'s self, mut state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        state.sleeping += 1;
        let mut state = match state.due_us {
            None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(due_us) => {
                let left = Duration::from_micros(due_us.saturating_sub(now_us()));
                self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.sleeping -= 1;
        if state.due_us.is_some_and(|due_us| due_us <= now_us()) {
            let step = state.scheduler.turn(now_us());
            if let Some(run) = state.take(step) {
                state.ready.push_back(run);
            }
        }
        state
    }

    fn run_while_there_is_more(&self, run: Run) {
        let mut next = Some(run);
        while let Some(run) = next {
            let (at, instance) = self.run(run);
            let mut state = self.lock();
            next = state.give_back(at, instance);
            if next.is_none() && state.closed {
                self.wake.notify_all();
            }
        }
    }

    /// Runs, and then some of what came meanwhile: nobody was woken for it.
    fn run_in_a_row(self: &Arc<Self>, run: Run) {
        nerite_watchdog::running(&self.watched);
        let mut next = run;
        for turn in 1.. {
            let (at, instance) = match self.begin(next) {
                Ok(done) => done,
                Err(begun) => {
                    let mut state = self.lock();
                    state.ready.push_back(begun);
                    return self.wake_one(state);
                }
            };
            let mut state = self.lock();
            let Some(more) = state.give_back(at, instance) else {
                if state.closed {
                    self.wake.notify_all();
                }
                return;
            };
            if turn < QUICK_RUNS_IN_A_ROW && self.quickness.is_quick(more.size) {
                next = more;
                continue;
            }
            state.ready.push_back(more);
            return self.wake_one(state);
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

fn now_us() -> u64 {
    now_ns() / 1000
}

#[cfg(test)]
mod tests;
