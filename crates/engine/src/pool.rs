//! On which thread does a job run, and on which instance?
//!
//! ```text
//!   submit ──► an instance idle, nobody waiting, model known to be quick ──► run here, on the caller's thread
//!      │                                                                       └─ then run what arrived meanwhile
//!      └─────► queue ──► a worker thread (made when first needed, at most one per instance)
//! ```
//! On a busy or small machine the number of wake-ups decides the latency of small requests, so the quick path makes none.
//! Whether a model is quick is measured, not configured.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use nerite_backend::{Batch, Instance, Job, Meter, now_ns};
use nerite_request::{Code, Status};

use crate::limits::{QUICK_BYTES_MAX, QUICK_NS_MAX, QUICK_RUNS_IN_A_ROW, QUICK_RUNS_MIN};

/// The instances of one model version and the jobs that wait for them.
pub struct Pool(Arc<Shared>);

struct Shared {
    name: String,
    state: Mutex<State>,
    wake: Condvar,
    meter: Arc<dyn Meter>,
    pace: Pace,
    threads: Mutex<Vec<JoinHandle<()>>>,
    instances: usize,
}

struct State {
    idle: Vec<Box<dyn Instance>>,
    waiting: VecDeque<Job>,
    workers: usize,
    sleeping: usize,
    closed: bool,
}

impl Pool {
    /// A pool over these instances; `name` names its threads.
    pub fn new(name: &str, instances: Vec<Box<dyn Instance>>, meter: Arc<dyn Meter>) -> Pool {
        let count = instances.len();
        let state = State { idle: instances, waiting: VecDeque::new(), workers: 0, sleeping: 0, closed: false };
        let shared = Shared {
            name: name.to_owned(),
            state: Mutex::new(state),
            wake: Condvar::new(),
            meter,
            pace: Pace::default(),
            threads: Mutex::default(),
            instances: count,
        };
        Pool(Arc::new(shared))
    }

    /// Runs the job now, here, if that is known to be quick; else queues it. Gives it back if the pool was closed.
    // The job comes back whole on a path that is hardly ever taken; a box would cost every request an allocation.
    #[allow(clippy::result_large_err)]
    pub fn submit(&self, job: Job) -> Result<(), Job> {
        let quick = self.0.pace.is_quick(&job);
        let mut state = self.0.lock();
        if state.closed {
            return Err(job);
        }
        if quick
            && state.waiting.is_empty()
            && let Some(instance) = state.idle.pop()
        {
            drop(state);
            self.0.run_in_a_row(instance, job);
            return Ok(());
        }
        state.waiting.push_back(job);
        self.0.wake_one(state);
        Ok(())
    }

    /// Jobs that wait for an instance.
    pub fn waiting(&self) -> usize {
        self.0.lock().waiting.len()
    }

    /// Takes no more jobs; those that wait are still run. Returns when the last has been, so not on a front end's thread.
    pub fn close(&self) {
        self.0.lock().closed = true;
        self.0.wake.notify_all();
        let threads = std::mem::take(&mut *self.0.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A worker catches what its instance throws, so joining it cannot fail in a way that matters here.
            drop(thread.join());
        }
        let mut state = self.0.lock();
        while state.idle.len() < self.0.instances || !state.waiting.is_empty() {
            state = self.0.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.wake.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees to it that somebody will look at the queue: whoever holds an instance does so when done; else a worker.
    fn wake_one(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.idle.is_empty() {
            return;
        }
        if state.sleeping > 0 || state.workers >= self.instances {
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
        let spawned = std::thread::Builder::new().name(self.name.clone()).spawn(move || shared.work());
        match spawned {
            Ok(thread) => self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread),
            Err(error) => self.without_worker(&error),
        }
    }

    /// The system refuses a thread. With other workers the job waits for them, without any it must not wait for ever.
    fn without_worker(&self, error: &std::io::Error) {
        let mut state = self.lock();
        state.workers -= 1;
        if state.workers > 0 {
            return;
        }
        let refused = std::mem::take(&mut state.waiting);
        drop(state);
        for job in refused {
            let text = format!("no thread to run model '{}': {error}; raise the limit on threads", self.name);
            job.refuse(Status::unavailable(text), &*self.meter);
        }
    }

    /// A worker's life.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if state.idle.is_empty() || state.waiting.is_empty() {
                if state.closed && state.waiting.is_empty() {
                    state.workers -= 1;
                    return;
                }
                state.sleeping += 1;
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.sleeping -= 1;
                continue;
            }
            let (Some(mut instance), Some(job)) = (state.idle.pop(), state.waiting.pop_front()) else { continue };
            drop(state);
            self.run(&mut *instance, job);
            state = self.lock();
            state.idle.push(instance);
            if state.closed {
                self.wake.notify_all();
            }
        }
    }

    /// Runs `job`, and then some of those that arrived while it ran: nobody was woken for them.
    fn run_in_a_row(self: &Arc<Self>, mut instance: Box<dyn Instance>, job: Job) {
        let mut next = Some(job);
        for _ in 0..QUICK_RUNS_IN_A_ROW {
            let Some(job) = next.take() else { break };
            self.run(&mut *instance, job);
            let mut state = self.lock();
            if state.waiting.front().is_some_and(|job| self.pace.is_quick(job)) {
                next = state.waiting.pop_front();
            }
        }
        if let Some(job) = next {
            self.run(&mut *instance, job);
        }
        let mut state = self.lock();
        state.idle.push(instance);
        if !state.waiting.is_empty() {
            self.wake_one(state);
        } else if state.closed {
            self.wake.notify_all();
        }
    }

    fn run(&self, instance: &mut dyn Instance, job: Job) {
        if job.is_cancelled() {
            return job.refuse(Status::new(Code::Cancelled, ""), &*self.meter);
        }
        let start = now_ns();
        let batch = Batch { jobs: vec![job], meter: Arc::clone(&self.meter) };
        // A runtime that panics loses its jobs, which answer themselves; the server and the other models go on.
        if catch_unwind(AssertUnwindSafe(|| instance.run(batch))).is_err() {
            log::error!("model '{}' panicked; its request was answered with an error", self.name);
        }
        self.pace.note(now_ns().saturating_sub(start));
    }
}

/// How long runs take: a running mean that forgets.
#[derive(Debug, Default)]
struct Pace {
    mean_ns: AtomicU64,
    runs: AtomicU64,
}

impl Pace {
    fn is_quick(&self, job: &Job) -> bool {
        self.runs.load(Ordering::Relaxed) >= QUICK_RUNS_MIN
            && self.mean_ns.load(Ordering::Relaxed) <= QUICK_NS_MAX
            && job.inputs().iter().map(|input| input.data.len()).sum::<usize>() <= QUICK_BYTES_MAX
    }

    fn note(&self, ns: u64) {
        let runs = self.runs.fetch_add(1, Ordering::Relaxed);
        // Two threads may lose one of their samples to each other; a mean does not mind.
        let mean = self.mean_ns.load(Ordering::Relaxed);
        let next = if runs == 0 { ns } else { mean - mean / 8 + ns / 8 };
        self.mean_ns.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
