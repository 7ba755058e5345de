//! On which thread are large requests looked up in the response cache?
//!
//! Each model version has its own thread for this, while there are look-ups. Requests of one model wait for each other as they would for its
//! instances, and clients take turns in the same way. Requests of other models do not wait for them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};

use nerite_backend::Job;
use nerite_locks::Mutex;
use nerite_schedule::{Arrival, Driver, Fifo, InstanceId, Rejection, RunSlot};

use crate::arrival::client;
use crate::pool::Answer;

/// The model version that a request is for.
pub(crate) trait RunJob: Send + Sync {
    /// Runs the job, now or as soon as an instance is free.
    fn run(&self, job: Job);
    /// Answers a job that is not run.
    fn reject(&self, job: Job, rejection: Rejection);
    /// Whether responses are sent in the order of the requests.
    fn keeps_order(&self) -> bool {
        false
    }
    /// Answers a job whose response was found, in its turn among the others. Returns the job if it is to run instead.
    fn answer_in_turn(&self, job: Job, answer: Answer) -> Option<Job> {
        answer(job);
        None
    }
}

/// The queue of look-ups of one model version.
pub(crate) struct Lookups {
    state: Mutex<State>,
    idle: Condvar,
}

struct State {
    queue: Driver<Lookup>,
    /// Whether the thread exists.
    is_busy: bool,
}

/// The look-up thread, as the only instance of the queue.
const THREAD: InstanceId = InstanceId(0);
/// The queue reads no clock.
const NO_TIME: u64 = 0;

/// The work for a request on the look-up thread.
type Work = dyn FnOnce(&Arc<dyn RunJob>, Job) + Send;

/// A request, and the work to do for it.
pub(crate) struct Lookup {
    pub model: Arc<dyn RunJob>,
    pub job: Job,
    pub work: Box<Work>,
}

/// Why a request is not looked up.
pub(crate) enum NotTaken {
    /// The queue is full.
    Full(Box<Job>),
    /// The system has no thread for it.
    NoThread(Box<Job>),
}

impl Lookup {
    fn carry_out(self) {
        let Lookup { model, job, work } = self;
        work(&model, job);
    }
}

impl Lookups {
    /// A queue of at most this many requests.
    pub fn at_most(waiting_max: usize) -> Arc<Lookups> {
        let queue = Driver::new(Box::new(Fifo::bounded(waiting_max)));
        Arc::new(Lookups { state: Mutex::new(State { queue, is_busy: false }), idle: Condvar::new() })
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.lock().queue.waiting()
    }

    /// Whether a request waits or is being looked up.
    pub fn is_busy(&self) -> bool {
        self.lock().is_busy
    }

    /// Queues a request, unless the queue is full or there is no thread.
    pub fn push(self: &Arc<Self>, lookup: Lookup) -> Result<(), NotTaken> {
        let mut state = self.lock();
        let (client, in_order) = (client(&lookup.job), lookup.model.keeps_order());
        let ticket =
            state.queue.arrive(lookup, |ticket| Arrival { client, in_order, ..Arrival::new(ticket, 1) }, NO_TIME);
        if let Some((lookup, _)) = state.queue.next_rejected() {
            return Err(NotTaken::Full(Box::new(lookup.job)));
        }
        if state.is_busy {
            return Ok(());
        }
        let lookups = Arc::clone(self);
        let work = move || lookups.work();
        state.is_busy = std::thread::Builder::new().name("nerite-lookup".to_owned()).spawn(work).is_ok();
        if state.is_busy {
            return Ok(());
        }
        state.queue.cancel(ticket, NO_TIME);
        state.queue.next_rejected().map_or(Ok(()), |(lookup, _)| Err(NotTaken::NoThread(Box::new(lookup.job))))
    }

    /// Returns when the queue is empty and no look-up runs.
    pub fn wait(&self) {
        let mut state = self.lock();
        while state.is_busy {
            state = self.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn work(&self) {
        while let Some(lookup) = self.next() {
            // A request whose look-up panics is answered with an error when it is dropped. The requests behind it must still be served.
            if catch_unwind(AssertUnwindSafe(|| lookup.carry_out())).is_err() {
                log::error!("a look-up in the response cache panicked; its request was answered with an error");
            }
            self.lock().queue.done(THREAD, NO_TIME);
        }
        self.idle.notify_all();
    }

    /// The next request that is looked up. `None`: the thread ends.
    fn next(&self) -> Option<Lookup> {
        let mut state = self.lock();
        state.queue.grant(THREAD, NO_TIME);
        let lookup = state.queue.next_run().and_then(|run| run.slots.into_iter().find_map(job_of));
        if lookup.is_none() {
            state.queue.withdraw(THREAD, NO_TIME);
        }
        state.is_busy = lookup.is_some();
        lookup
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn job_of(slot: RunSlot<Lookup>) -> Option<Lookup> {
    match slot {
        RunSlot::Empty => None,
        RunSlot::Job(lookup, _) => Some(lookup),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use nerite_backend::{ModelVersion, now_ns};
    use nerite_request::{AdmittedRequest, Reply};

    use super::*;

    struct NeverRun;

    impl RunJob for NeverRun {
        fn run(&self, _: Job) {
            panic!("the work of the test does not run jobs");
        }

        fn reject(&self, _: Job, _: Rejection) {
            panic!("there is room for all");
        }
    }

    /// A look-up whose request sends its number when it is answered.
    fn lookup(number: usize, answers: &mpsc::Sender<usize>, work: impl FnOnce() + Send + 'static) -> Lookup {
        lookup_of(0, number, answers, work)
    }

    /// The same, of that peer.
    fn lookup_of(
        peer: u64,
        number: usize,
        answers: &mpsc::Sender<usize>,
        work: impl FnOnce() + Send + 'static,
    ) -> Lookup {
        let answers = answers.clone();
        let client = nerite_request::Client { peer, ..Default::default() };
        let reply = Reply::new(move |_| answers.send(number).unwrap());
        let request = AdmittedRequest { client, ..AdmittedRequest::new(reply) };
        let job = Job::new(request, ModelVersion::unmetered("m").begin(), now_ns());
        Lookup { model: Arc::new(NeverRun), job, work: Box::new(move |_, _| work()) }
    }

    #[test]
    fn requests_behind_a_panic_are_looked_up() {
        let lookups = Lookups::at_most(10);
        let (to, answers) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel::<()>();
        let panics = lookup(0, &to, move || {
            goes_on.recv().unwrap();
            panic!("thrown on purpose");
        });
        assert!(lookups.push(panics).is_ok());
        for number in 1..4 {
            assert!(lookups.push(lookup(number, &to, || ())).is_ok());
        }
        go_on.send(()).unwrap();
        for number in 0..4 {
            assert_eq!(answers.recv_timeout(Duration::from_secs(20)), Ok(number));
        }
        lookups.wait();
        assert_eq!(lookups.waiting(), 0);
    }

    #[test]
    fn peers_take_turns_and_one_leaves_places_for_others() {
        let lookups = Lookups::at_most(8);
        let (to, answers) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel::<()>();
        let (begins, begun) = mpsc::channel::<()>();
        let waits = move || {
            begins.send(()).unwrap();
            goes_on.recv().unwrap();
        };
        assert!(lookups.push(lookup_of(1, 0, &to, waits)).is_ok());
        begun.recv().unwrap();
        let taken = (1..8).filter(|number| lookups.push(lookup_of(1, *number, &to, || ())).is_ok()).count();
        assert_eq!(taken, 6, "three quarters of 8");
        assert!(lookups.push(lookup_of(2, 8, &to, || ())).is_ok());
        // The request that found no place is answered when it is dropped.
        assert_eq!(answers.recv_timeout(Duration::from_secs(20)), Ok(7));
        go_on.send(()).unwrap();
        lookups.wait();
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), [0, 1, 8, 2, 3, 4, 5, 6]);
    }
}
