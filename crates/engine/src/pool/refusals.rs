//! Which threads answer requests that waited too long, or were cancelled, if their answers may wait?
//!
//! Such an answer calls functions of the code that made the request, for example of a compiled backend. They may take any time. The request is
//! rejected on the thread of the timer or on a front thread, and neither may wait. So each model version has a few threads of its own that call these
//! functions. A function that hangs holds up other requests of the model only if all of these threads hang.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_backend::Job;
use nerite_schedule::Rejection;

use super::Shared;
use crate::limits::REFUSING_THREADS_MAX;

/// The rejected jobs of one model version that are to be answered on threads of their own.
#[derive(Default)]
pub(super) struct Refusals {
    waiting: VecDeque<(Job, Rejection)>,
    /// The number of threads that answer them. Each ends when no job is left.
    threads: usize,
}

impl Shared {
    /// Answers rejected jobs, here or on another thread. If `answers_may_wait` (see [`State`](super::State)), the end of any of them may send the
    /// answer of another one, which may wait.
    pub(super) fn reject_all(self: &Arc<Self>, rejected: Vec<(Job, Rejection)>, answers_may_wait: bool) {
        let mut apart = Vec::new();
        for (job, rejection) in rejected {
            if is_late(rejection) && (answers_may_wait || job.may_wait()) {
                apart.push((job, rejection));
            } else {
                (self.reject)(job, rejection);
            }
        }
        if !apart.is_empty() {
            self.reject_apart(apart);
        }
    }

    fn reject_apart(self: &Arc<Self>, rejected: Vec<(Job, Rejection)>) {
        let mut refusals = self.lock_refusals();
        // Each job gets a thread of its own, up to the limit: any of these answers may hang, and so may those that are being sent.
        let started = rejected.len().min(REFUSING_THREADS_MAX.saturating_sub(refusals.threads));
        refusals.waiting.extend(rejected);
        refusals.threads += started;
        drop(refusals);
        for number in 0..started {
            let Err(error) = self.start_refusing() else { continue };
            log::error!(
                "no thread to answer rejected requests to model '{}': {error}; raise the limit on threads",
                self.name
            );
            let mut refusals = self.lock_refusals();
            refusals.threads -= started - number;
            if refusals.threads == 0 {
                // There is no other thread that could answer them.
                refusals.threads = 1;
                drop(refusals);
                self.refuse();
            }
            return;
        }
    }

    fn start_refusing(self: &Arc<Self>) -> std::io::Result<()> {
        #[cfg(test)]
        super::tests::check_threads()?;
        let shared = Arc::clone(self);
        std::thread::Builder::new().name("nerite-refuse".to_owned()).spawn(move || shared.refuse()).map(drop)
    }

    /// Answers jobs until none is left.
    fn refuse(&self) {
        let mut refusals = self.lock_refusals();
        while let Some((job, rejection)) = refusals.waiting.pop_front() {
            drop(refusals);
            self.catching(|| (self.reject)(job, rejection));
            refusals = self.lock_refusals();
        }
        refusals.threads -= 1;
    }

    fn lock_refusals(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a job was rejected after it had waited. Other rejections are reported at once to the code that submits the job.
fn is_late(rejection: Rejection) -> bool {
    match rejection {
        Rejection::TimedOut | Rejection::SequenceTimedOut | Rejection::Cancelled => true,
        Rejection::Stopping
        | Rejection::Full
        | Rejection::Overloaded
        | Rejection::MissingStart
        | Rejection::RunEnded => false,
    }
}
