//! On which thread are large requests looked up in the response cache?
//!
//! Each model version has its own thread for this, while there are look-ups. Requests of one model wait for each other as they would for its
//! instances. Requests of other models do not wait for them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};

use nerite_backend::Job;
use nerite_locks::Mutex;
use nerite_schedule::Rejection;

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
    waiting_max: usize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Lookup>,
    /// Whether the thread exists.
    is_busy: bool,
}

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
        Arc::new(Lookups { state: Mutex::default(), idle: Condvar::new(), waiting_max })
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Whether a request waits or is being looked up.
    pub fn is_busy(&self) -> bool {
        self.lock().is_busy
    }

    /// Queues a request, unless the queue is full or there is no thread.
    pub fn push(self: &Arc<Self>, lookup: Lookup) -> Result<(), NotTaken> {
        let mut state = self.lock();
        if state.waiting.len() >= self.waiting_max {
            return Err(NotTaken::Full(Box::new(lookup.job)));
        }
        state.waiting.push_back(lookup);
        if state.is_busy {
            return Ok(());
        }
        let lookups = Arc::clone(self);
        let work = move || lookups.work();
        state.is_busy = std::thread::Builder::new().name("nerite-lookup".to_owned()).spawn(work).is_ok();
        if state.is_busy {
            return Ok(());
        }
        state.waiting.pop_back().map_or(Ok(()), |lookup| Err(NotTaken::NoThread(Box::new(lookup.job))))
    }

    /// Returns when the queue is empty and no look-up runs.
    pub fn wait(&self) {
        let mut state = self.lock();
        while state.is_busy {
            state = self.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn work(&self) {
        let next = || {
            let mut state = self.lock();
            let next = state.waiting.pop_front();
            state.is_busy = next.is_some();
            next
        };
        while let Some(lookup) = next() {
            // A request whose look-up panics is answered with an error when it is dropped. The requests behind it must still be served.
            if catch_unwind(AssertUnwindSafe(|| lookup.carry_out())).is_err() {
                log::error!("a look-up in the response cache panicked; its request was answered with an error");
            }
        }
        self.idle.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        let answers = answers.clone();
        let request = AdmittedRequest::new(Reply::new(move |_| answers.send(number).unwrap()));
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
}
