//! On which thread are large requests looked up in the response cache?
//!
//! On one of the model version's own, which is there while there is something to look up. Requests of a model wait for each other there as
//! they would for its instances, and those of other models do not.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};

use nerite_backend::Job;
use nerite_locks::Mutex;
use nerite_schedule::Rejection;

/// The model version that a request is for.
pub(crate) trait RunJob: Send + Sync {
    /// Runs the job, now or as soon as an instance is free.
    fn run(&self, job: Job);
    /// Answers a job that is not run.
    fn reject(&self, job: Job, rejection: Rejection);
}

/// Requests that wait for their turn.
pub(crate) struct Lookups {
    state: Mutex<State>,
    idle: Condvar,
    waiting_max: usize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Lookup>,
    /// Whether there is a thread.
    is_busy: bool,
}

/// What is done with a request on the thread of look-ups.
type Work = dyn FnOnce(&Arc<dyn RunJob>, Job) + Send;

/// A request, and what is to be done with it.
pub(crate) struct Lookup {
    pub model: Arc<dyn RunJob>,
    pub job: Job,
    pub work: Box<Work>,
}

/// A request that is not looked up.
pub(crate) enum NotTaken {
    /// As many wait as may.
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
    /// At most so many wait.
    pub fn at_most(waiting_max: usize) -> Arc<Lookups> {
        Arc::new(Lookups { state: Mutex::default(), idle: Condvar::new(), waiting_max })
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Has a request looked up, unless too many wait or there is no thread.
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
        // Made on the thread itself: a thread that the system refuses has no end.
        let work = move || Busy(lookups).0.work();
        state.is_busy = std::thread::Builder::new().name("nerite-lookup".to_owned()).spawn(work).is_ok();
        if state.is_busy {
            return Ok(());
        }
        state.waiting.pop_back().map_or(Ok(()), |lookup| Err(NotTaken::NoThread(Box::new(lookup.job))))
    }

    /// Returns when nothing waits and nothing is looked up.
    pub fn wait(&self) {
        let mut state = self.lock();
        while state.is_busy {
            state = self.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn work(&self) {
        loop {
            let next = {
                let mut state = self.lock();
                let next = state.waiting.pop_front();
                state.is_busy = next.is_some();
                next
            };
            match next {
                Some(lookup) => lookup.carry_out(),
                None => return,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread's end, be it that a look-up panicked: then the next request makes another thread.
struct Busy(Arc<Lookups>);

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if std::thread::panicking() {
            state.is_busy = false;
        }
        drop(state);
        self.0.idle.notify_all();
    }
}
