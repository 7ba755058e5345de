//! What does a thread do that runs a model's jobs?

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_backend::{Batch, Job, Jobs, Outbox, now_ns};
use nerite_request::{Code, Status};
use nerite_schedule::InstanceId;

use super::{Run, Shared, State, Work};
use crate::limits::{NESTED_RUNS_MAX, QUICK_PATIENCE, QUICK_RUNS_IN_A_ROW};
use crate::quickness::Size;
use crate::verbose::Requests;

thread_local! {
    /// How many runs' answers this thread is giving, each within the one before.
    static ANSWERING: Cell<usize> = const { Cell::new(0) };
}

/// Whether what is submitted now may run on this thread, as far as its stack is concerned.
pub(super) fn may_run_here() -> bool {
    ANSWERING.get() < NESTED_RUNS_MAX
}

impl Shared {
    /// The system refuses a thread. With other workers the jobs wait for them, without any they must not wait for ever.
    pub(super) fn without_worker(self: &Arc<Self>, error: &std::io::Error) {
        let mut state = self.lock();
        state.workers -= 1;
        let mut refused = Vec::new();
        while state.workers == 0 {
            let Some(Run { at, instance, jobs, .. }) = state.ready.pop_front() else { break };
            state.give_back(at, instance);
            refused.extend(jobs);
            self.tell_left(&state);
            while let Some(next) = state.next_run() {
                state.ready.push_back(next);
            }
        }
        let mut work = Work::default();
        self.take_rest(&mut state, &mut work);
        drop(state);
        // Without the lock: an answer may bring the next request.
        for job in refused {
            let text = format!("no thread to run model '{}': {error}; raise the limit on threads", self.name);
            job.refuse(Status::unavailable(text));
        }
        self.carry_out(work);
    }

    /// A worker's life.
    pub(super) fn work(self: &Arc<Self>) {
        let mut state = self.lock();
        loop {
            if let Some(run) = state.ready.pop_front() {
                drop(state);
                let (run, answers) = self.run(run);
                state = self.give_back(run, answers);
            } else if state.closed && state.driver.is_drained() || Shared::is_spare(&state) {
                state.workers -= 1;
                return;
            } else {
                state.sleeping += 1;
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.sleeping -= 1;
            }
        }
    }

    /// A worker gives an instance back and answers what it ran, and has the lock again when what followed is done.
    fn give_back(self: &Arc<Self>, run: Run, answers: Answers) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.give_back(run.at, run.instance);
        let mut work = Work::default();
        self.tell_left(&state);
        // This worker takes the first.
        while let Some(run) = state.next_run() {
            state.ready.push_back(run);
            if state.ready.len() > 1 {
                work.workers += self.wake_worker(&mut state);
            }
        }
        self.take_rest(&mut state, &mut work);
        if state.closed && state.driver.is_drained() {
            self.wake.notify_all();
        }
        drop(state);
        self.carry_out(work);
        self.answer(answers);
        self.lock()
    }

    /// Runs, and then some of what came meanwhile: nobody was woken for it.
    pub(super) fn run_in_a_row(self: &Arc<Self>, run: Run) {
        nerite_watchdog::running(&self.watched);
        let mut next = Some(run);
        let mut turn = 1;
        while let Some(run) = next {
            let mut workers = 0;
            let (run, answers) = self.begin(run);
            let mut state = self.lock();
            if run.begun.is_none() {
                state.give_back(run.at, run.instance);
            } else {
                state.ready.push_back(run);
                workers = self.wake_worker(&mut state);
            }
            let mut work = self.settle(&mut state, turn < QUICK_RUNS_IN_A_ROW);
            work.workers += workers;
            if state.closed && state.driver.is_drained() {
                self.wake.notify_all();
            }
            drop(state);
            next = self.carry_out(work);
            self.answer(answers);
            turn += 1;
        }
    }

    /// On a worker: from beginning to end, or from where another thread left it.
    fn run(&self, run: Run) -> (Run, Answers) {
        let Run { at, mut instance, jobs, size, begun } = run;
        let start = begun.unwrap_or_else(now_ns);
        let (has_run, outbox) = Outbox::around(|| {
            let batch = self.batch(at, jobs);
            let has_run = begun.is_some() || !batch.jobs.is_empty();
            if has_run {
                let work = || self.catching(|| if begun.is_some() { instance.finish() } else { instance.run(batch) });
                match &self.cores {
                    Some(cores) => cores.within(at.0, work),
                    None => work(),
                };
            }
            has_run
        });
        let ns = has_run.then(|| now_ns().saturating_sub(start));
        (Run { at, instance, jobs: Jobs::new(), size, begun: None }, Answers { outbox, size, ns })
    }

    /// On a thread that has other work: what takes longer than such a thread may wait comes back begun.
    fn begin(&self, run: Run) -> (Run, Answers) {
        let Run { at, mut instance, jobs, size, .. } = run;
        let start = now_ns();
        let (done, outbox) = Outbox::around(|| {
            let batch = self.batch(at, jobs);
            if batch.jobs.is_empty() {
                return None;
            }
            Some(self.catching(|| instance.begin(batch, QUICK_PATIENCE)).unwrap_or(true))
        });
        // How long a run takes that goes on elsewhere is not known yet.
        let ns = (done == Some(true)).then(|| now_ns().saturating_sub(start));
        let begun = (done == Some(false)).then_some(start);
        (Run { at, instance, jobs: Jobs::new(), size, begun }, Answers { outbox, size, ns })
    }

    /// Answers what a run left to be answered, now that its instance may be used by others: a client that asks again finds it idle, and
    /// nothing recurses into an instance that is held. What the answers take counts as part of the run.
    fn answer(&self, answers: Answers) {
        let Answers { mut outbox, size, ns } = answers;
        let start = now_ns();
        ANSWERING.set(ANSWERING.get() + 1);
        while let Some(response) = outbox.take_next() {
            // Who panics over one answer has not seen the others.
            self.catching(|| response.deliver());
        }
        ANSWERING.set(ANSWERING.get() - 1);
        if let Some(ns) = ns {
            self.note(size, ns + now_ns().saturating_sub(start));
        }
    }

    fn note(&self, size: Option<Size>, ns: u64) {
        log::debug!("model '{}': ran and answered in {} µs", self.name, ns / 1000);
        if let Some(slow) = self.quickness.note(size, ns) {
            log::info!(
                "model '{}': a run took {} ms; requests with {} input bytes or more run on workers from now on",
                self.name,
                ns / 1_000_000,
                slow.bytes_min
            );
        }
    }

    fn batch(&self, at: InstanceId, jobs: Jobs) -> Batch {
        let jobs = if jobs.iter().any(Job::is_cancelled) { without_cancelled(jobs) } else { jobs };
        log::debug!("model '{}': instance {} runs {}", self.name, at.0, Requests(&jobs));
        Batch { jobs, meter: Arc::clone(self.requests.meter()) }
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

/// What a run answered, and how long it took, if it is over.
struct Answers {
    outbox: Outbox,
    size: Option<Size>,
    ns: Option<u64>,
}

fn without_cancelled(jobs: Jobs) -> Jobs {
    let (gone, jobs): (Jobs, Jobs) = jobs.into_iter().partition(Job::is_cancelled);
    for job in gone {
        job.refuse(Status::new(Code::Cancelled, ""));
    }
    jobs
}
