//! On which thread does a job run?
//!
//! ```text
//!   submit ──► the scheduler says run, requests of this size are quick ──► here, on the caller's thread
//!      │                                                                     └─ then what the scheduler says next
//!      └─────► the scheduler says run, or nothing yet ──► a worker (made when first needed, at most one per instance)
//! ```
//! Who runs, when and on which instance is the scheduler's decision, which [`Driver`] applies; threads and the lock are ours, the clock
//! is [`timer`]'s. On a busy or small machine the number of wake-ups decides the latency of small requests, so the quick path makes none.
//! Whether a batch is quick is what [`Quickness`] knows from the model's own statement and from runs that were measured; nobody
//! configures it.

mod again;
mod limited;
mod resize;
mod workers;

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use nerite_backend::{CostBound, Instance, Job, Jobs, ModelVersion, Reschedule};
use nerite_locks::Mutex;
use nerite_schedule::{Arrival, Driver, InstanceId, Rejection, RunSlot, Ticket};

use self::limited::Limited;
use crate::arrival::Arrivals;
use crate::limits::{ORDERED_BYTES_MAX, ORDERED_RESPONSES_MAX};
use crate::policies::InstanceCores;
use crate::quickness::{Quickness, Size};
use crate::rates::{Granted, Turns};
use crate::response_order::{Bounds, ResponseOrder};
use crate::scheduling::Scheduling;
use crate::sequences::Sequences;
use crate::timer::{Wake, now_us, timer};
use crate::verbose::Id;

/// How much of responses that keep their order is held.
const ORDERED: Bounds = Bounds { responses: ORDERED_RESPONSES_MAX, bytes: ORDERED_BYTES_MAX };

/// The instances of one model version and the jobs that wait for them.
pub struct Pool(Arc<Shared>);

/// Answers a job that is not run.
pub type Reject = Box<dyn Fn(Job, Rejection) + Send + Sync>;

struct Shared {
    name: String,
    /// The same for the watchdog.
    watched: nerite_watchdog::Name,
    state: Mutex<State>,
    wake: Condvar,
    /// Told when an instance that was to leave has run its last.
    left: Condvar,
    requests: Arc<ModelVersion>,
    reject: Reject,
    quickness: Quickness,
    arrivals: Arc<Arrivals>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Where the instances run; `None` for anywhere, threads of front ends included.
    cores: Option<Arc<InstanceCores>>,
}

struct State {
    driver: Driver<Queued>,
    /// There where the scheduler orders sequences.
    sequences: Option<Arc<Sequences>>,
    /// Who takes requests back that are to run again, where the model may ask for that.
    repeats: Option<Weak<dyn Reschedule>>,
    /// Requests of sequences that may wait. Other schedulers bound them by themselves.
    requests_max: usize,
    /// Jobs that came.
    arrived: u64,
    /// Of the responses, if they leave in the order of the requests.
    order: Option<ResponseOrder>,
    /// There where instances share resources with others.
    limited: Option<Limited>,
    /// `None` while an instance runs.
    instances: Vec<Option<Box<dyn Instance>>>,
    /// Decided, and waiting for a worker.
    ready: VecDeque<Run>,
    /// The earliest time at which the timer wakes this pool.
    timer_us: Option<u64>,
    workers: usize,
    /// As many as there are instances, with those that are to leave and still run.
    workers_max: usize,
    sleeping: usize,
    closed: bool,
    /// Numbers of instances that run and are to leave, and of places that were left.
    leaving: HashSet<usize>,
    empty: Vec<usize>,
    /// Instances that left, to be ended.
    gone: Vec<Box<dyn Instance>>,
    /// Whether a thread ends them.
    is_ending: bool,
}

/// A job that waits.
struct Queued {
    job: Job,
    /// How many came before.
    number: u64,
    size: Option<Size>,
}

/// Jobs on their way to their instance.
struct Run {
    at: InstanceId,
    instance: Box<dyn Instance>,
    jobs: Jobs,
    /// How large the job is, if it is one alone. Several together always run on a worker.
    size: Option<Size>,
    /// When the jobs were begun, if they were: the instance has them, and is waited for.
    begun: Option<u64>,
}

/// What follows from an event, to be done without the lock.
#[derive(Default)]
struct Work {
    /// A run for this thread.
    here: Option<Run>,
    rejected: Vec<(Job, Rejection)>,
    /// Workers to be made.
    workers: usize,
    /// Instances of any model whose turn to use resources has come.
    turns: Option<Turns>,
}

impl Pool {
    /// A pool over these instances, whose runs this bounds, ordered as `scheduling` says, for `requests` of one model version; `name`
    /// names its threads, and `reject` answers what the scheduler rejects.
    pub fn new(
        name: &str,
        instances: Vec<Box<dyn Instance>>,
        bound: CostBound,
        scheduling: Scheduling,
        sequences: Option<Arc<Sequences>>,
        requests: Arc<ModelVersion>,
        reject: Reject,
    ) -> Pool {
        let workers_max = instances.len();
        let Scheduling { scheduler, arrivals, preserve_ordering, requests_max, claims, cores } = scheduling;
        let arrivals = Arc::new(arrivals);
        let asked = Arc::clone(&arrivals);
        let mut driver = Driver::new(scheduler).asking(move |batch: &[&Queued], next: &Queued| {
            batch.first().is_none_or(|head| asked.may_join(&head.job, &next.job))
        });
        (0..workers_max).rev().for_each(|instance| driver.grant(InstanceId(instance), now_us()));
        let state = State {
            driver,
            sequences,
            repeats: None,
            requests_max,
            arrived: 0,
            order: preserve_ordering.then(|| ResponseOrder::new(ORDERED)),
            limited: claims.map(|claims| Limited::new(claims, Arc::clone(&arrivals))),
            instances: instances.into_iter().map(Some).collect(),
            ready: VecDeque::new(),
            timer_us: None,
            workers: 0,
            workers_max,
            sleeping: 0,
            closed: false,
            leaving: HashSet::new(),
            empty: Vec::new(),
            gone: Vec::new(),
            is_ending: false,
        };
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            watched: nerite_watchdog::Name::new(name),
            state: Mutex::new(state),
            wake: Condvar::new(),
            left: Condvar::new(),
            requests,
            reject,
            quickness: Quickness::new(bound),
            arrivals,
            threads: Mutex::default(),
            cores,
        });
        shared.watch_order();
        if shared.arrivals.repeats() {
            let whom: Weak<dyn Reschedule> = Arc::<Shared>::downgrade(&shared);
            shared.lock().repeats = Some(whom);
        }
        if let Some(limited) = &shared.lock().limited {
            let whom: Weak<dyn Granted> = Arc::<Shared>::downgrade(&shared);
            limited.claims().tell(&whom);
        }
        Pool(shared)
    }

    /// Runs the job now, here, if that is known to be quick; else sees to it that a worker does. It is answered in any case.
    pub fn submit(&self, job: Job) {
        let shared = &self.0;
        log::debug!("[request id: {}] model '{}': comes to the queue with {} rows", Id(&job), shared.name, job.rows());
        let (size, arrival) = (shared.quickness.size(&job), shared.arrivals.describe(&job, job.arrived() / 1000));
        let mut state = shared.lock();
        if state.is_full_for(&arrival) {
            drop(state);
            return (shared.reject)(job, Rejection::Overloaded);
        }
        let (number, now_us) = (state.arrived, now_us());
        state.arrived += 1;
        // A run that is decided at once may still wait for resources.
        let may_wait = state.limited.is_some().then(|| job.cancel().clone());
        let ticket = state.driver.arrive(Queued { job, number, size }, |ticket| Arrival { ticket, ..arrival }, now_us);
        let mut is_wanted = true;
        if let Some(cancel) = state.driver.job(ticket).map(|queued| queued.job.cancel()).or(may_wait.as_ref()) {
            // Nobody asks a job that waits whether its client is still there; so it tells.
            let whom = Arc::downgrade(shared);
            is_wanted = cancel.on_cancelled(move || Shared::cancel(&whom, ticket));
            if !is_wanted {
                state.driver.cancel(ticket, now_us);
            }
        }
        let work = shared.settle(&mut state, shared.cores.is_none() && workers::may_run_here());
        drop(state);
        if let Some(run) = shared.carry_out(work) {
            shared.run_in_a_row(run);
        }
        if !is_wanted && may_wait.is_some() {
            Shared::cancel(&Arc::downgrade(shared), ticket);
        }
    }

    /// Answers a job that is not run.
    pub fn reject(&self, job: Job, rejection: Rejection) {
        (self.0.reject)(job, rejection);
    }

    /// Jobs that wait for an instance.
    pub fn waiting(&self) -> usize {
        let state = self.0.lock();
        state.driver.waiting() + state.limited.as_ref().map_or(0, Limited::waiting)
    }

    /// Takes no more jobs; those that wait are still run. Returns when the last request of the model version is not in flight any more, be
    /// it that a responder outlived its run, so not on a front end's thread.
    pub fn close(&self) {
        self.stop();
        let mut state = self.0.lock();
        while !state.driver.is_drained() {
            state = self.0.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        self.0.wake.notify_all();
        let threads = std::mem::take(&mut *self.0.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A worker catches what its instance throws, so joining it cannot fail in a way that matters here.
            drop(thread.join());
        }
        self.0.requests.wait();
        // Here, and not on the thread of whoever lets go of the version last: a model's process may take its time to end.
        let mut state = self.0.lock();
        let mut ended: Vec<_> = state.instances.iter_mut().filter_map(Option::take).collect();
        ended.append(&mut state.gone);
        drop(state);
        self.0.end(ended);
    }

    fn stop(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.driver.stop(now_us());
        let work = self.0.settle(&mut state, false);
        drop(state);
        self.0.wake.notify_all();
        self.0.carry_out(work);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.stop();
        if self.0.requests.in_flight() == 0 {
            return;
        }
        // A model's own thread may still answer: its instances, and with them its library, go after the last answer, and not on that
        // thread, which they may wait for.
        let held = Arc::clone(&self.0);
        let waiter = std::thread::Builder::new().name("nerite-retire".to_owned());
        let wait = move || held.requests.wait();
        let kept = Arc::clone(&self.0);
        match waiter.spawn(wait) {
            Ok(_) => drop(kept),
            Err(error) => {
                log::error!("no thread to unload '{}': {error}; it stays loaded", self.0.name);
                std::mem::forget(kept);
            }
        }
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        let mut state = self.lock();
        state.timer_us = None;
        state.driver.wake(now_us());
        let late = state.take_late(now_us());
        let mut work = self.settle(&mut state, false);
        work.rejected.extend(late.into_iter().map(|job| (job, Rejection::TimedOut)));
        drop(state);
        self.carry_out(work);
    }
}

impl State {
    /// What is to run next, of what the scheduler decided and what has the resources that it needs.
    fn next_run(&mut self) -> Option<Run> {
        loop {
            if self.order.as_ref().is_some_and(ResponseOrder::is_full) {
                return None;
            }
            let run = self.next_decided()?;
            match &mut self.limited {
                None => return Some(run),
                Some(limited) => {
                    if let Some(run) = limited.pass(run) {
                        return Some(run);
                    }
                }
            }
        }
    }

    /// The jobs and the instance of what the scheduler decided to run next.
    fn next_decided(&mut self) -> Option<Run> {
        let nerite_schedule::Run { instance: at, slots } = self.driver.next_run()?;
        let (mut jobs, mut numbers, mut size) = (Jobs::with_capacity(slots.len()), Vec::new(), None);
        let mut empty = self.empty_positions(&slots);
        for slot in slots {
            match slot {
                RunSlot::Job(mut queued, controls) => {
                    size = queued.size.filter(|_| jobs.is_empty());
                    if let (Some(repeats), Some(controls)) = (&self.repeats, &controls) {
                        queued.job.may_run_again(Weak::clone(repeats), controls.state);
                    }
                    if let (Some(sequences), Some(controls)) = (&self.sequences, controls) {
                        sequences.tell(&mut queued.job, &controls);
                    }
                    jobs.push(queued.job);
                    if self.order.is_some() {
                        numbers.push(queued.number);
                    }
                }
                RunSlot::Empty => jobs.extend(empty.next()),
            }
        }
        if let Some(order) = &self.order {
            keep_order(order, &numbers, &mut jobs);
        }
        let instance = self.instances.get_mut(at.0).and_then(Option::take);
        let instance = instance.expect("the scheduler names instances that it was granted");
        Some(Run { at, instance, jobs, size, begun: None })
    }

    /// Whether as many requests of sequences wait as may. Those of sequences that have begun find as much room again: with them
    /// sequences end, for which the others wait.
    fn is_full_for(&self, arrival: &Arrival) -> bool {
        let begins = arrival.sequence.as_ref().is_none_or(|step| step.start);
        let most = if begins { self.requests_max } else { self.requests_max.saturating_mul(2) };
        self.sequences.is_some() && self.driver.waiting() >= most
    }

    /// Requests for the empty positions of a batch.
    fn empty_positions(&self, slots: &[RunSlot<Queued>]) -> impl Iterator<Item = Job> + use<> {
        let neighbour = slots.iter().find_map(|slot| match slot {
            RunSlot::Job(queued, _) => Some(&queued.job),
            RunSlot::Empty => None,
        });
        let empty = slots.iter().filter(|slot| matches!(slot, RunSlot::Empty));
        let made: Vec<Job> = match (&self.sequences, neighbour) {
            (Some(sequences), Some(neighbour)) => empty.map(|_| sequences.empty_position(neighbour)).collect(),
            _ => Vec::new(),
        };
        made.into_iter()
    }

    /// Takes an instance back, which may start again at once.
    fn give_back(&mut self, at: InstanceId, instance: Box<dyn Instance>) {
        let now_us = now_us();
        self.driver.done(at, now_us);
        if self.leaving.contains(&at.0) {
            return self.let_go(at.0, instance);
        }
        if let Some(place) = self.instances.get_mut(at.0) {
            *place = Some(instance);
        }
        if let Some(limited) = &mut self.limited {
            limited.release(at);
        }
        if self.limited.as_mut().is_none_or(|limited| limited.may_grant(at)) {
            self.driver.grant(at, now_us);
        }
    }
}

/// Has the jobs of a batch answered in the order in which they came, whatever the order of their rows.
fn keep_order(order: &ResponseOrder, numbers: &[u64], jobs: &mut [Job]) {
    let mut positions: Vec<usize> = (0..jobs.len()).collect();
    positions.sort_unstable_by_key(|at| numbers.get(*at).copied());
    for at in positions {
        if let Some(job) = jobs.get_mut(at) {
            job.answer_by(|reply| order.in_turn(reply));
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on when there is room for responses that keep their order.
    fn watch_order(self: &Arc<Self>) {
        let whom = Arc::downgrade(self);
        if let Some(order) = &self.lock().order {
            order.on_room(move || {
                if let Some(shared) = whom.upgrade() {
                    let mut state = shared.lock();
                    let work = shared.settle(&mut state, false);
                    drop(state);
                    shared.carry_out(work);
                }
            });
        }
    }

    /// Takes what was decided. The first batch stays here if it is quick and that `may_be_here`; workers get the others.
    fn settle(self: &Arc<Self>, state: &mut State, may_be_here: bool) -> Work {
        let mut work = Work::default();
        self.tell_left(state);
        while let Some(run) = state.next_run() {
            if may_be_here && work.here.is_none() && self.quickness.is_quick(run.size) {
                work.here = Some(run);
            } else {
                state.ready.push_back(run);
                work.workers += self.wake_worker(state);
            }
        }
        self.take_rest(state, &mut work);
        work
    }

    /// Takes what else is to be done without the lock.
    fn take_rest(self: &Arc<Self>, state: &mut State, work: &mut Work) {
        let rejected = std::iter::from_fn(|| state.driver.next_rejected());
        work.rejected.extend(rejected.map(|(queued, rejection)| (queued.job, rejection)));
        work.turns = state.limited.as_mut().map(Limited::take_turns);
        self.set_timer(state);
    }

    /// Has the timer wake this pool when the scheduler wants it.
    fn set_timer(self: &Arc<Self>, state: &mut State) {
        let late_us = state.limited.as_ref().and_then(Limited::next_late_us);
        let Some(at_us) = state.driver.wake_at_us().into_iter().chain(late_us).min() else { return };
        if state.timer_us.is_some_and(|known_us| known_us <= at_us) {
            return;
        }
        let whom = Arc::downgrade(self);
        match timer().wake_at(at_us, whom) {
            Ok(()) => state.timer_us = Some(at_us),
            // What waits for a time then waits for the next event.
            Err(error) => {
                log::error!("no thread for the clock of model '{}': {error}; raise the limit on threads", self.name);
            }
        }
    }

    /// Wakes a worker for what is ready. 1 if one has to be made.
    fn wake_worker(&self, state: &mut State) -> usize {
        // As many sleepers as runs are ready are awake already, or are being woken.
        if state.sleeping >= state.ready.len() || state.workers >= state.workers_max.max(1) {
            // A closer waits on the same condition; only all of them are sure to include a worker.
            if state.closed {
                self.wake.notify_all();
            } else {
                self.wake.notify_one();
            }
            return 0;
        }
        state.workers += 1;
        1
    }

    /// Makes workers and answers what was rejected. What is to be run by the caller.
    fn carry_out(self: &Arc<Self>, work: Work) -> Option<Run> {
        let Work { here, rejected, workers, turns } = work;
        for _ in 0..workers {
            let shared = Arc::clone(self);
            match std::thread::Builder::new().name(self.name.clone()).spawn(move || shared.work()) {
                Ok(thread) => self.keep_thread(thread),
                Err(error) => self.without_worker(&error),
            }
        }
        for (job, rejection) in rejected {
            (self.reject)(job, rejection);
        }
        if let Some(turns) = turns {
            turns.tell();
        }
        here
    }

    /// Has the closer wait for a thread.
    fn keep_thread(&self, thread: JoinHandle<()>) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that ended because instances left.
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
    }

    /// The client of a job that waits has gone, be it for an instance or for what its instance needs.
    fn cancel(whom: &Weak<Shared>, ticket: Ticket) {
        let Some(shared) = whom.upgrade() else { return };
        let mut state = shared.lock();
        state.driver.cancel(ticket, now_us());
        let gone = state.take_cancelled();
        let mut work = shared.settle(&mut state, false);
        work.rejected.extend(gone.into_iter().map(|job| (job, Rejection::Cancelled)));
        drop(state);
        shared.carry_out(work);
    }
}

#[cfg(test)]
mod tests;
