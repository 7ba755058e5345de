//! How does a thread run the jobs of a model?

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nerite_backend::{Batch, Job, Jobs, Outbox, must_run_on_other_thread, now_ns};
use nerite_request::{Code, Status};
use nerite_schedule::InstanceId;
use nerite_watchdog::{Flow, STALL_NS, Started};

use super::{Run, Shared, State, Work};
use crate::limits::{NESTED_RUNS_MAX, QUICK_PATIENCE, QUICK_RUNS_IN_A_ROW, TAKEN_OVER_NS_MAX};
use crate::quickness::{Change, Size};
use crate::verbose::Requests;
use crate::watch::watch_here;

thread_local! {
    /// The number of runs whose answers this thread is sending, each nested in the one before.
    static ANSWERING: Cell<usize> = const { Cell::new(0) };
}

/// Whether a request that is submitted now may run on this thread: its stack has space for one more nested run, and the caller permits it.
pub(super) fn may_run_here() -> bool {
    ANSWERING.get() < NESTED_RUNS_MAX && !must_run_on_other_thread()
}

impl Shared {
    /// Starts the thread of a worker.
    pub(super) fn start_worker(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        #[cfg(test)]
        super::tests::check_threads()?;
        let shared = Arc::clone(self);
        std::thread::Builder::new().name(self.name.clone()).spawn(move || shared.work())
    }

    /// Handles the system's refusal of a thread. Other workers serve the waiting jobs. If there are none, the jobs are refused.
    ///
    /// A run that was begun is never given back here: its instance still owes the answer, and the next run would take that answer for its own. If
    /// there is no worker, no run was begun ([`State::serving`]).
    pub(super) fn without_worker(self: &Arc<Self>, error: &std::io::Error) {
        let mut state = self.lock();
        state.workers -= 1;
        let mut refused = Vec::new();
        while state.workers == 0 {
            let Some(place) = state.ready.iter().position(|run| run.begun.is_none()) else { break };
            let Some(Run { at, instance, jobs, .. }) = state.ready.remove(place) else { break };
            state.give_back(at, instance);
            refused.extend(jobs);
            self.notify_left(&state);
            while let Some(next) = state.next_run() {
                state.ready.push_back(next);
            }
        }
        let mut work = Work::default();
        self.take_rest(&mut state, &mut work);
        let others = state.workers > 0;
        drop(state);
        if others {
            // This worker was counted among those that run, so too few others may have been woken.
            self.wake.notify_all();
        }
        // This is done without the lock, because an answer may cause the next request.
        for job in refused {
            let text = format!("no thread to run model '{}': {error}; raise the limit on threads", self.name);
            job.refuse(Status::unavailable(text));
        }
        self.carry_out(work);
    }

    /// The loop of a worker.
    pub(super) fn work(self: &Arc<Self>) {
        let mut state = self.lock();
        state.serving += 1;
        // Whether the last run was so fast that a front thread may take over the next one.
        let mut was_fast = false;
        loop {
            if let Some(run) = state.ready.pop_front() {
                let is_left = was_fast && !state.answers_may_wait && self.may_leave(&run);
                drop(state);
                let ended = if is_left { self.begin_and_leave(run) } else { Some(self.run(run)) };
                state = match ended {
                    Some((run, answers)) => {
                        was_fast = answers.ns.is_some_and(|ns| ns < TAKEN_OVER_NS_MAX);
                        self.give_back(run, answers)
                    }
                    None => self.lock(),
                };
            } else if state.closed && state.driver.is_drained() || Shared::is_spare(&state) {
                state.workers -= 1;
                state.serving -= 1;
                return;
            } else {
                state.sleeping += 1;
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.sleeping -= 1;
            }
        }
    }

    /// Gives back the instance of a worker's run and sends its answers. Does the work that follows from it, and returns with the lock held.
    fn give_back(self: &Arc<Self>, run: Run, answers: Answers) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.give_back(run.at, run.instance);
        let mut work = Work::default();
        self.notify_left(&state);
        // This worker takes the first run.
        while let Some(run) = state.next_run() {
            state.ready.push_back(run);
            if state.ready.len() > 1 {
                work.workers += self.wake_worker(&mut state);
            }
        }
        self.take_rest(&mut state, &mut work);
        drop(state);
        self.carry_out(work);
        self.answer(answers);
        self.lock()
    }

    /// Does this run, and then some that became ready meanwhile, for which no worker was woken.
    pub(super) fn run_in_a_row(self: &Arc<Self>, run: Run) {
        nerite_watchdog::running(&self.watched);
        let mut next = Some(run);
        let mut turn = 1;
        while let Some(run) = next {
            // If the run is left to another process, this thread does not wait for it, and serves its other clients.
            let is_left = self.may_begin_here(&run);
            let (run, answers) = self.begin(run, if is_left { Duration::ZERO } else { QUICK_PATIENCE });
            if run.begun.is_some() {
                self.answer(answers);
                return self.leave(run, watch_here());
            }
            next = self.give_back_here(run, answers, turn < QUICK_RUNS_IN_A_ROW);
            turn += 1;
        }
    }

    /// Gives an instance back and sends the answers of its run, on a thread that has other work. Returns the run that this thread may do next.
    pub(super) fn give_back_here(self: &Arc<Self>, run: Run, answers: Answers, may_be_here: bool) -> Option<Run> {
        let mut state = self.lock();
        state.give_back(run.at, run.instance);
        let work = self.settle(&mut state, may_be_here);
        drop(state);
        let mut next = self.carry_out(work);
        if let Some(run) = next.take_if(|run| self.may_begin_here(run)) {
            // The process of the next run works while this thread sends the answers.
            if let Some((run, answers)) = self.begin_and_leave(run) {
                // The run was done at once, because its clients have gone.
                self.give_back_here(run, answers, false);
            }
        }
        self.answer(answers);
        next
    }

    /// Whether this thread may begin a run and then leave it: the instance's work is done elsewhere, and few bytes are moved here.
    pub(super) fn may_begin_here(&self, run: &Run) -> bool {
        self.quickness.is_small(run.size) && watch_here().is_some()
    }

    /// Does a run on a worker: from its beginning, or from where another thread left it.
    fn run(&self, run: Run) -> (Run, Answers) {
        let Run { at, mut instance, jobs, size, flow, begun } = run;
        let start = begun.unwrap_or_else(now_ns);
        let (has_run, outbox) = Outbox::around(|| {
            let batch = self.batch(at, jobs);
            let has_run = begun.is_some() || !batch.jobs.is_empty();
            if begun.is_none() {
                instance.release();
            }
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
        let answers = Answers { outbox, size, ns, flow: None };
        (Run { at, instance, jobs: Jobs::new(), size, flow, begun: None }, answers)
    }

    /// Does a run on a thread that has other work. If it takes longer than that thread may wait, or if another process does the work, it is returned
    /// as begun.
    pub(super) fn begin(&self, run: Run, timeout: Duration) -> (Run, Answers) {
        let Run { at, mut instance, jobs, size, flow, .. } = run;
        let start = now_ns();
        let work = || {
            let batch = self.batch(at, jobs);
            if batch.jobs.is_empty() {
                return None;
            }
            Some(self.catching(|| instance.begin(batch, timeout)).unwrap_or(true))
        };
        let (done, outbox) = Outbox::around(|| nerite_watchdog::charging(flow.as_ref(), work));
        // If the run continues elsewhere, its time is not known yet.
        let ns = (done == Some(true)).then(|| now_ns().saturating_sub(start));
        let begun = (done == Some(false)).then_some(start);
        let answers = Answers { outbox, size, ns, flow: flow.clone() };
        (Run { at, instance, jobs: Jobs::new(), size, flow, begun }, answers)
    }

    /// Sends the answers of a run after its instance was given back: a client that sends its next request finds the instance idle, and a nested
    /// request does not need an instance that is held. The time of the answers counts as part of the run.
    pub(super) fn answer(&self, answers: Answers) {
        let Answers { mut outbox, size, ns, flow } = answers;
        let start = now_ns();
        let started = Started::at(start);
        ANSWERING.set(ANSWERING.get() + 1);
        while let Some(response) = outbox.take_next() {
            // A panic in one answer does not lose the others.
            self.catching(|| response.deliver());
        }
        ANSWERING.set(ANSWERING.get() - 1);
        if let Some(ns) = ns {
            let answered_ns = now_ns().saturating_sub(start);
            self.note(size, ns + answered_ns);
            if ns + answered_ns >= STALL_NS {
                note_late(started, answered_ns, flow.as_ref());
            }
        }
    }

    fn note(&self, size: Option<Size>, ns: u64) {
        log::debug!("model '{}': ran for {} µs", self.name, ns / 1000);
        match self.quickness.note(size, ns) {
            Some(Change::Slow { bytes_min }) => log::info!(
                "model '{}': a run took {} ms; requests with {bytes_min} input bytes or more run on workers from now on, until many in a \
                 row were quick",
                self.name,
                ns / 1_000_000,
            ),
            Some(Change::Recovered { bytes_min }) => {
                log::info!(
                    "model '{}': requests with {bytes_min} input bytes or more were quick many times in a row",
                    self.name
                );
            }
            None => {}
        }
    }

    fn batch(&self, at: InstanceId, jobs: Jobs) -> Batch {
        let jobs = if jobs.iter().any(Job::is_stopped) { without_stopped(jobs) } else { jobs };
        // A run that another thread began has no jobs here. That thread wrote its line of the log.
        if !jobs.is_empty() {
            log::debug!("model '{}': instance {} runs {}", self.name, at.0, Requests(&jobs));
        }
        Batch { jobs, meter: Arc::clone(self.requests.meter()) }
    }

    /// Catches a panic of a runtime. Its jobs are dropped and answer with an error. The server and other models continue.
    pub(super) fn catching<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let done = catch_unwind(AssertUnwindSafe(work)).ok();
        if done.is_none() {
            log::error!("model '{}' panicked; its request was answered with an error", self.name);
        }
        done
    }
}

/// The answers of a run, and its time if it is over.
pub(super) struct Answers {
    pub(super) outbox: Outbox,
    pub(super) size: Option<Size>,
    pub(super) ns: Option<u64>,
    /// The flow that the time of the run was charged to, if it is not that of the current poll.
    pub(super) flow: Option<Flow>,
}

/// Lets the watchdog see whether this thread waited for memory of the client during a long run, or while it sent the answers.
#[cold]
fn note_late(answers: Started, answered_ns: u64, flow: Option<&Flow>) {
    match flow {
        Some(_) if answered_ns >= STALL_NS => answers.ended_late(flow),
        Some(_) => {}
        None => {
            if let Some(poll) = Started::with_late_poll() {
                poll.ended_late(None);
            }
        }
    }
}

fn without_stopped(jobs: Jobs) -> Jobs {
    let (gone, jobs): (Jobs, Jobs) = jobs.into_iter().partition(Job::is_stopped);
    for job in gone {
        job.refuse(Status::new(Code::Cancelled, ""));
    }
    jobs
}
