//! If a model keeps the order of its responses, when is a job answered that the cache has a response for?
//!
//! ```text
//!   job 0 ─► waits ─► starts: turn 0          the turns are those of `ResponseOrder`
//!   found ─────────────► turn 1                as soon as all jobs before it have started, or were rejected
//!   job 1 ─► waits ──────────► starts: turn 2
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, PoisonError};

use nerite_backend::Job;

use super::{Pool, Shared, State};
use crate::response_order::ResponseOrder;

/// Answers a job with the response that was found for it.
pub(crate) type Answer = Box<dyn FnOnce(Job) + Send>;

/// The jobs of a model version with ordered responses whose turn is not known yet.
#[derive(Default)]
pub(super) struct Line {
    /// The numbers of the jobs that wait to run.
    waiting: BTreeSet<u64>,
    found: VecDeque<Found>,
    /// Jobs whose turn has come. They are answered without the lock.
    due: Vec<(Job, Answer)>,
}

/// A job whose response was found.
struct Found {
    /// The number of jobs that were submitted before it.
    number: u64,
    job: Job,
    answer: Answer,
}

impl Line {
    /// A job with this number waits to run.
    pub fn arrived(&mut self, number: u64) {
        self.waiting.insert(number);
    }

    /// A job was rejected, and takes no turn.
    pub fn rejected(&mut self, number: u64) {
        self.waiting.remove(&number);
    }

    /// Jobs that wait for their turn although their responses were found.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// The job with this number starts now. Gives turns to the jobs with found responses that were submitted before it.
    fn starts(&mut self, number: u64, order: &ResponseOrder) {
        self.waiting.remove(&number);
        while self.found.front().is_some_and(|found| found.number <= number) {
            self.give_turn(order);
        }
    }

    /// Gives turns to the jobs with found responses before which no job waits to run.
    fn settle(&mut self, order: &ResponseOrder) {
        let oldest = self.waiting.first().copied();
        let is_next = |found: &Found| oldest.is_none_or(|oldest| found.number <= oldest);
        while self.found.front().is_some_and(is_next) && !order.is_full() {
            self.give_turn(order);
        }
    }

    fn give_turn(&mut self, order: &ResponseOrder) {
        let Some(Found { mut job, answer, .. }) = self.found.pop_front() else { return };
        job.answer_by(|reply| order.in_turn(reply));
        self.due.push((job, answer));
    }
}

impl Pool {
    /// Whether responses are sent in the order of the requests.
    pub fn keeps_order(&self) -> bool {
        self.0.keeps_order
    }

    /// Answers a job whose response was found, in its turn. Returns the job if it is to run instead: it would have to wait, and too many jobs wait
    /// already or its answer may call code that waits.
    pub fn answer_in_turn(&self, job: Job, answer: Answer) -> Option<Job> {
        let shared = &self.0;
        let mut state = shared.lock();
        state.answers_may_wait |= job.may_wait();
        let is_full = state.line.len() >= state.requests_max || state.answers_may_wait;
        let has_wait = !state.line.waiting.is_empty() || state.line.len() > 0;
        if is_full && has_wait {
            return Some(job);
        }
        let number = state.arrived;
        state.line.found.push_back(Found { number, job, answer });
        let work = shared.settle(&mut state, false);
        drop(state);
        shared.carry_out(work);
        None
    }
}

impl State {
    /// Makes the jobs of a batch be answered in the order in which they were submitted, and not in the order of their rows.
    pub(super) fn keep_order(&mut self, numbers: &[u64], jobs: &mut [Job]) {
        let Some(order) = &self.order else { return };
        let mut positions: Vec<usize> = (0..jobs.len()).collect();
        positions.sort_unstable_by_key(|at| numbers.get(*at).copied());
        for at in positions {
            if let Some(job) = jobs.get_mut(at) {
                numbers.get(at).into_iter().for_each(|number| self.line.starts(*number, order));
                job.answer_by(|reply| order.in_turn(reply));
            }
        }
    }

    /// Takes the jobs whose responses were found and that have their turn.
    pub(super) fn take_due(&mut self) -> Vec<(Job, Answer)> {
        if let Some(order) = &self.order {
            self.line.settle(order);
        }
        std::mem::take(&mut self.line.due)
    }
}

impl Shared {
    /// Answers jobs whose responses were found. If `answers_may_wait` (see [`State`]), another thread does it, which may wait. Such jobs are few,
    /// because no further ones are queued then.
    pub(super) fn answer_due(self: &Arc<Self>, due: Vec<(Job, Answer)>, answers_may_wait: bool) {
        if due.is_empty() {
            return;
        }
        if !answers_may_wait {
            return self.answer_each(due);
        }
        let kept = Arc::new(nerite_locks::Mutex::new(due));
        let (shared, apart) = (Arc::clone(self), Arc::clone(&kept));
        let answer = move |shared: &Shared, due: &nerite_locks::Mutex<Vec<(Job, Answer)>>| {
            shared.answer_each(std::mem::take(&mut *due.lock().unwrap_or_else(PoisonError::into_inner)));
        };
        let thread = std::thread::Builder::new().name("nerite-found".to_owned());
        if thread.spawn(move || answer(&shared, &apart)).is_err() {
            answer(self, &kept);
        }
    }

    fn answer_each(&self, due: Vec<(Job, Answer)>) {
        for (job, answer) in due {
            // A panic in one answer does not lose the others.
            self.catching(|| answer(job));
        }
    }
}
