//! On which thread does a job run?
//!
//! ```text
//!   submit ──► the scheduler says run, requests of this size are quick ──► here, on the caller's thread
//!      │                                                                     └─ then what the scheduler says next
//!      └─────► the scheduler says run, or nothing yet ──► a worker (made when first needed, at most one per instance)
//! ```
//! The scheduler decides which jobs run, when and on which instance. [`Driver`] applies its decisions. This file has the threads and the lock, and
//! [`timer`] the clock. On a busy or small machine the number of wake-ups decides the latency of small requests, so the quick path wakes no thread.
//! If another process does the work of a run, a front thread only begins the run ([`awaited`]).
//! [`Quickness`] knows from the model's own statement and from measured runs whether a batch is quick. There is no setting for it.

mod again;
mod awaited;
mod decided;
mod down;
mod empty_positions;
mod found;
mod limited;
mod refusals;
mod resize;
mod workers;

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use nerite_backend::{CostBound, Instance, Job, Jobs, ModelVersion, Reschedule};
use nerite_locks::Mutex;
use nerite_schedule::{Arrival, Driver, InstanceId, Rejection, Ticket};
use nerite_watchdog::Flow;

use self::awaited::WatchedInstance;
use self::down::Down;
pub(crate) use self::found::Answer;
use self::found::Line;
use self::limited::Limited;
use self::refusals::Refusals;
use crate::arrival::Arrivals;
use crate::limits::{LAST_REQUEST_PATIENCE, NAMED_REQUESTS_MAX, ORDERED_BYTES_MAX, ORDERED_RESPONSES_MAX};
use crate::policies::InstanceCores;
use crate::quickness::{Quickness, Size};
use crate::rates::{Granted, Turns};
use crate::response_order::{Bounds, ResponseOrder};
use crate::scheduling::Scheduling;
use crate::sequences::Sequences;
use crate::timer::{Key, Wake, now_us, timer};
use crate::verbose::Id;

/// The limits of responses that are held to keep their order.
const ORDERED: Bounds = Bounds { responses: ORDERED_RESPONSES_MAX, bytes: ORDERED_BYTES_MAX };

/// The instances of one model version and the jobs that wait for them.
pub struct Pool(Arc<Shared>);

/// Answers a job that is not run.
pub type Reject = Box<dyn Fn(Job, Rejection) + Send + Sync>;

struct Shared {
    name: String,
    /// The model's name for the watchdog.
    watched: nerite_watchdog::Name,
    state: Mutex<State>,
    wake: Condvar,
    /// Notified when a removed instance is to be dropped, or was.
    left: Condvar,
    requests: Arc<ModelVersion>,
    reject: Reject,
    refusals: Mutex<Refusals>,
    quickness: Quickness,
    arrivals: Arc<Arrivals>,
    /// Whether responses are sent in the order of the requests.
    keeps_order: bool,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The cores of the instances. `None` for all cores; then jobs may run on front threads too.
    cores: Option<Arc<InstanceCores>>,
}

struct State {
    driver: Driver<Queued>,
    /// `Some` if the scheduler orders sequences.
    sequences: Option<Arc<Sequences>>,
    /// Takes back requests that are to run again, if the model may ask for that.
    repeats: Option<Weak<dyn Reschedule>>,
    /// The most jobs that are answered from the response cache and wait for their turn.
    requests_max: usize,
    /// The number of jobs submitted so far.
    arrived: u64,
    /// The order of the responses, if they are sent in the order of the requests.
    order: Option<ResponseOrder>,
    /// The jobs that have no turn in that order yet.
    line: Line,
    /// Whether the end of a request may send another one's response, which may wait. Then only workers run requests.
    answers_may_wait: bool,
    /// `Some` if the instances share resources with those of other models.
    limited: Option<Limited>,
    /// `None` while an instance runs.
    instances: Vec<Option<WatchedInstance>>,
    /// Instances whose processes have died.
    down: Down,
    /// Runs that wait for a worker.
    ready: VecDeque<Run>,
    /// When the timer wakes this pool.
    timer: Option<Key>,
    /// The number of workers, including those whose threads are being started.
    workers: usize,
    /// The number of workers whose threads run. A run is begun on a front thread only if there is one, which can take it over.
    serving: usize,
    /// The number of instances, including removed ones that still run.
    workers_max: usize,
    sleeping: usize,
    closed: bool,
    /// Numbers of removed instances that still run or have sequences. `empty` has the free numbers.
    leaving: HashSet<usize>,
    empty: Vec<usize>,
    /// Removed instances that are idle and are to be dropped.
    gone: Vec<WatchedInstance>,
    /// Whether a thread drops them.
    is_ending: bool,
    /// Whether that thread is dropping some that were in `gone`.
    is_dropping: bool,
}

/// A job that waits.
struct Queued {
    job: Job,
    /// The number of jobs submitted before it.
    number: u64,
    size: Option<Size>,
    flow: Option<Flow>,
}

/// Jobs that are to run on an instance, or were begun there.
struct Run {
    at: InstanceId,
    instance: WatchedInstance,
    jobs: Jobs,
    /// The size of the job, if it is the only one. Several jobs together always run on a worker.
    size: Option<Size>,
    /// The flow of that job, which the time of front threads is charged to.
    flow: Option<Flow>,
    /// The time at which the jobs were begun on another thread. The instance has them, and a worker waits for it.
    begun: Option<u64>,
}

/// The work that follows from an event, and is done without the lock.
#[derive(Default)]
struct Work {
    /// A run that this thread does.
    here: Option<Run>,
    rejected: Vec<(Job, Rejection)>,
    /// Jobs that are answered from the response cache, in their turn.
    due: Vec<(Job, Answer)>,
    /// As in [`State`], for the rejected jobs.
    answers_may_wait: bool,
    /// The number of workers to start.
    workers: usize,
    /// Instances of any model that were granted resources.
    turns: Option<Turns>,
    /// The numbers of sequences that are over, whose states are dropped.
    over: Option<(Arc<Sequences>, Vec<u64>)>,
}

impl Pool {
    /// A pool over these instances for `requests` of one model version. `bound` says what bounds the time of a run. `scheduling` says how jobs are
    /// ordered. `name` names the threads. `reject` answers the jobs that the scheduler rejects.
    pub fn new(
        name: &str,
        instances: Vec<Box<dyn Instance>>,
        bound: CostBound,
        scheduling: Scheduling,
        sequences: Option<Arc<Sequences>>,
        requests: Arc<ModelVersion>,
        reject: Reject,
    ) -> Pool {
        let watched: Vec<_> = instances.iter().map(|instance| instance.readiness()).collect();
        let Scheduling { scheduler, arrivals, preserve_ordering, requests_max, claims, cores } = scheduling;
        let (arrivals, workers_max) = (Arc::new(arrivals.in_order(preserve_ordering)), watched.len());
        let rules = Arc::clone(&arrivals);
        let driver = Driver::new(scheduler)
            .with_join_rule(move |first: &Queued, next: &Queued| rules.may_join(&first.job, &next.job));
        let mut state = State {
            driver,
            sequences,
            repeats: None,
            requests_max,
            arrived: 0,
            order: preserve_ordering.then(|| ResponseOrder::new(ORDERED)),
            line: Line::default(),
            answers_may_wait: false,
            limited: claims.map(Limited::new),
            instances: instances.into_iter().map(|instance| Some(instance.into())).collect(),
            down: Down::default(),
            ready: VecDeque::new(),
            timer: None,
            workers: 0,
            serving: 0,
            workers_max,
            sleeping: 0,
            closed: false,
            leaving: HashSet::new(),
            empty: Vec::new(),
            gone: Vec::new(),
            is_ending: false,
            is_dropping: false,
        };
        (0..workers_max).rev().for_each(|instance| state.offer(InstanceId(instance)));
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            watched: nerite_watchdog::Name::new(name),
            state: Mutex::new(state),
            wake: Condvar::new(),
            left: Condvar::new(),
            requests,
            reject,
            refusals: Mutex::default(),
            quickness: Quickness::new(bound).with_padding(arrivals.padding().clone()),
            arrivals,
            keeps_order: preserve_ordering,
            threads: Mutex::default(),
            cores,
        });
        shared.watch_order();
        watched.into_iter().enumerate().for_each(|(number, readiness)| shared.watch_process(number, readiness));
        if shared.arrivals.repeats() {
            let whom: Weak<dyn Reschedule> = Arc::<Shared>::downgrade(&shared);
            shared.lock().repeats = Some(whom);
        }
        if let Some(limited) = &mut shared.lock().limited {
            let pool: Weak<dyn Granted> = Arc::<Shared>::downgrade(&shared);
            limited.claims().set_pool(pool);
        }
        Pool(shared)
    }

    /// Runs the job on this thread if it is known to be quick. Otherwise a worker runs it. The job is answered in any case. It runs on the instance
    /// that it `prefers`, if this one is idle.
    pub fn submit(&self, job: Job, prefers: Option<InstanceId>) {
        let shared = &self.0;
        log::debug!("[request id: {}] model '{}': comes to the queue with {} rows", Id(&job), shared.name, job.rows());
        let (may_wait, size) = (job.may_wait(), shared.quickness.size(&job));
        // The task of another connection may begin this job, run it or take it over. The time it spends is charged to this flow.
        let flow = if shared.quickness.is_small(size) { nerite_watchdog::current_flow() } else { None };
        let arrival = shared.arrivals.describe(&job, job.arrived() / 1000);
        let mut state = shared.lock();
        state.answers_may_wait |= may_wait && state.order.is_some();
        let (number, now_us) = (state.arrived, now_us());
        state.arrived += 1;
        if state.order.is_some() {
            state.line.arrived(number);
        }
        let ticket = state.driver.arrive(
            Queued { job, number, size, flow },
            |ticket| Arrival { ticket, prefers, ..arrival },
            now_us,
        );
        let waiting = state.driver.job_mut(ticket).map(|queued| {
            if size.is_some() && queued.flow.is_none() {
                queued.flow = nerite_watchdog::current_flow();
            }
            queued.job.stop().clone()
        });
        if let Some(cancel) = waiting {
            // Nothing checks again and again whether the client of a waiting job has gone, so a callback reports it.
            let whom = Arc::downgrade(shared);
            if !cancel.on_cancelled(move || Shared::cancel(&whom, ticket)) {
                state.driver.cancel(ticket, now_us);
            }
        }
        let work = shared.settle(&mut state, shared.cores.is_none() && workers::may_run_here());
        drop(state);
        if let Some(run) = shared.carry_out(work) {
            shared.run_in_a_row(run);
        }
    }

    /// Answers a job that is not run.
    pub fn reject(&self, job: Job, rejection: Rejection) {
        (self.0.reject)(job, rejection);
    }

    /// The numbers of the instances that are idle, and of removed ones that are idle and have sequences.
    pub fn idle(&self) -> Vec<usize> {
        let state = self.0.lock();
        let idle = state.instances.iter().enumerate().filter(|(_, instance)| instance.is_some());
        let idle = idle.filter(|(number, _)| !state.down.contains(*number));
        idle.map(|(number, _)| number).collect()
    }

    /// Jobs that wait for an instance.
    pub fn waiting(&self) -> usize {
        let state = self.0.lock();
        state.driver.waiting() + state.line.len()
    }

    /// Takes no more jobs. Jobs that wait are still run. Returns when no request of the model version is in flight. A responder may outlive its run
    /// for long, so do not call this on a front thread.
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
            // A worker catches the panics of its instance, so the result of the join has no meaning.
            drop(thread.join());
        }
        self.wait_for_last();
        // The instances are dropped here, and not on the thread that drops the version last, because the process of a model may take long to end.
        let mut state = self.0.lock();
        let mut ended: Vec<_> = state.instances.iter_mut().filter_map(Option::take).collect();
        ended.append(&mut state.gone);
        drop(state);
        self.0.end(ended);
    }

    /// Waits for the last request. If that takes long, the requests that the instances still keep are logged.
    fn wait_for_last(&self) {
        let left = self.0.requests.wait_for(LAST_REQUEST_PATIENCE);
        if left == 0 {
            return;
        }
        // The threads have ended, so nothing else uses the instances. `kept_requests` may run code that answers a request, so the pool is not locked
        // during the call.
        let instances: Vec<_> = self.0.lock().instances.iter_mut().map(Option::take).collect();
        let mut kept: Vec<String> = instances.iter().flatten().flat_map(|one| one.kept_requests()).collect();
        self.0.lock().instances = instances;
        let more = kept.len().saturating_sub(NAMED_REQUESTS_MAX);
        kept.truncate(NAMED_REQUESTS_MAX);
        if more > 0 {
            kept.push(format!("and {more} more"));
        }
        // So the separator is also put before the first one.
        kept.insert(0, String::new());
        let named = kept.join("; ");
        log::warn!(
            "model '{}' version {} is unloaded, but {left} requests have no last answer {} s after its last run; it stays in memory until they have{named}",
            self.0.requests.name(),
            self.0.requests.version(),
            LAST_REQUEST_PATIENCE.as_secs()
        );
        self.0.requests.wait();
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
        self.0.lock().timer.take().into_iter().for_each(|key| timer().forget(key));
        if self.0.requests.in_flight() == 0 {
            return;
        }
        // A model's own thread may still answer. So the instances, and with them the model's library, are dropped after the last answer. That thread
        // must not drop them, because they may wait for it.
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
        // The call may be for a time that was replaced meanwhile. The time that replaced it is kept, because it is still to come.
        state.timer = state.timer.filter(|next| next.at_us() > now_us());
        state.driver.wake(now_us());
        let work = self.settle(&mut state, false);
        drop(state);
        self.carry_out(work);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the pool continue when ordered responses are within their limits again.
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

    /// Takes the scheduler's decisions. The first batch is for this thread if it is quick and `may_be_here`. Workers get the others.
    fn settle(self: &Arc<Self>, state: &mut State, may_be_here: bool) -> Work {
        let mut work = Work::default();
        state.remove_unbound();
        self.notify_left(state);
        // A run that is begun here may have to be handed over to a worker. So at least one worker must run already: the system could refuse a new
        // thread.
        let may_be_here = may_be_here && state.serving > 0 && !state.answers_may_wait;
        while let Some(run) = state.next_run() {
            if may_be_here && work.here.is_none() && (self.quickness.is_quick(run.size) || self.may_begin_here(&run)) {
                work.here = Some(run);
            } else {
                state.ready.push_back(run);
                work.workers += self.wake_worker(state);
            }
        }
        self.take_rest(state, &mut work);
        work
    }

    /// Takes the other work that is done without the lock.
    fn take_rest(self: &Arc<Self>, state: &mut State, work: &mut Work) {
        if state.closed && state.driver.is_drained() {
            self.wake.notify_all();
        }
        while let Some((queued, rejection)) = state.driver.next_rejected() {
            state.line.rejected(queued.number);
            work.rejected.push((queued.job, rejection));
        }
        work.due = state.take_due();
        work.answers_may_wait = state.answers_may_wait;
        work.turns = state.limited.as_mut().map(Limited::take_turns);
        let over = state.driver.take_over();
        work.over = state.sequences.clone().filter(|_| !over.is_empty()).map(|sequences| (sequences, over));
        self.set_timer(state);
    }

    /// Sets the timer to the time at which the scheduler wants to be woken.
    fn set_timer(self: &Arc<Self>, state: &mut State) {
        let Some(at_us) = state.driver.wake_at_us() else { return };
        if state.timer.is_some_and(|known| known.at_us() <= at_us) {
            return;
        }
        // Clients may choose the times, so each pool has one entry at most.
        state.timer.take().into_iter().for_each(|later| timer().forget(later));
        let whom = Arc::downgrade(self);
        match timer().wake_at(at_us, whom) {
            Ok(key) => state.timer = Some(key),
            // Jobs that wait for this time then wait for the next event.
            Err(error) => {
                log::error!("no thread for the clock of model '{}': {error}; raise the limit on threads", self.name);
            }
        }
    }

    /// Wakes a worker for a run that is ready. Returns 1 if a worker must be started.
    fn wake_worker(&self, state: &mut State) -> usize {
        // No worker is started if enough of them sleep, or if there is one for each instance: those that are awake look for work before they sleep.
        if state.sleeping >= state.ready.len() || state.workers >= state.workers_max.max(1) {
            // `close` waits on the same condition variable. Only `notify_all` is sure to wake a worker.
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

    /// Starts workers and answers rejected jobs. Returns the run for this thread.
    fn carry_out(self: &Arc<Self>, work: Work) -> Option<Run> {
        let Work { here, rejected, due, answers_may_wait, workers, turns, over } = work;
        for _ in 0..workers {
            match self.start_worker() {
                Ok(thread) => self.keep_thread(thread),
                Err(error) => self.without_worker(&error),
            }
        }
        self.reject_all(rejected, answers_may_wait);
        self.answer_due(due, answers_may_wait);
        if let Some(turns) = turns {
            turns.notify();
        }
        if let Some((sequences, over)) = over {
            sequences.over(&over);
        }
        here
    }

    /// Keeps the thread's handle, for `close` to join it.
    fn keep_thread(&self, thread: JoinHandle<()>) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // Drops the handles of workers that ended because instances were removed.
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
    }

    /// Cancels a job that waits, because its client has gone.
    fn cancel(whom: &Weak<Shared>, ticket: Ticket) {
        let Some(shared) = whom.upgrade() else { return };
        let mut state = shared.lock();
        state.driver.cancel(ticket, now_us());
        let work = shared.settle(&mut state, false);
        drop(state);
        shared.carry_out(work);
    }
}

#[cfg(test)]
mod tests;
