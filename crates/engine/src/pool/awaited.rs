//! How does a run continue after its instance was given the work, if no thread waits for it?
//!
//! ```text
//!   a front thread gives the work to the instance ──► it serves other connections ──► the answer is readable: a front thread takes it over
//!                                                                                       ├─ the next run begins there
//!                                                                                       └─ then the answer is sent
//! ```
//! A run that took long, or that a thread may have to wait for, goes to a worker. After a run that was fast, the worker begins the next one and
//! leaves it to the front threads again. Otherwise a queue that is never empty would keep the worker, which costs two wake-ups more for each request.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use nerite_backend::{Instance, Jobs, Outbox, now_ns};

use super::workers::Answers;
use super::{Run, Shared, Work};
use crate::limits::TAKEN_OVER_NS_MAX;
use crate::watch::{Waiter, Watch, watch, watch_here};

/// An instance, and how front threads wait for it.
pub(super) struct WatchedInstance {
    // This field is dropped first, so that no thread waits for an instance that ends.
    waiter: Option<Arc<dyn Waiter>>,
    instance: Box<dyn Instance>,
}

impl WatchedInstance {
    /// Ends the registration of its descriptor, because a worker reads it now and may wait for it.
    pub(super) fn release(&self) {
        if let Some(waiter) = &self.waiter {
            waiter.release();
        }
    }

    fn waiter(&mut self, watch: &dyn Watch) -> Arc<dyn Waiter> {
        Arc::clone(self.waiter.get_or_insert_with(|| watch.waiter()))
    }
}

impl From<Box<dyn Instance>> for WatchedInstance {
    fn from(instance: Box<dyn Instance>) -> WatchedInstance {
        WatchedInstance { waiter: None, instance }
    }
}

impl Deref for WatchedInstance {
    type Target = dyn Instance;

    fn deref(&self) -> &Self::Target {
        &*self.instance
    }
}

impl DerefMut for WatchedInstance {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.instance
    }
}

/// A run that was begun. If this is dropped, the run continues on a worker, and the registration of its descriptor ends.
struct Begun {
    shared: Arc<Shared>,
    run: Option<Run>,
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(run) = self.run.take() {
            run.instance.release();
            self.shared.hand_over(run);
        }
    }
}

impl Shared {
    /// Makes a run that was begun continue when its instance is ready: on a front thread if there is a `watch`, otherwise on a worker.
    pub(super) fn leave(self: &Arc<Self>, mut run: Run, watch: Option<&'static dyn Watch>) {
        let awaited = run.instance.awaited().zip(watch.map(|watch| run.instance.waiter(watch)));
        let begun = Begun { shared: Arc::clone(self), run: Some(run) };
        if let Some((what, waiter)) = awaited {
            waiter.when_readable(what, Box::new(move || begun.go_on()));
        }
    }

    /// Whether any thread may begin this run and leave the rest to a front thread.
    pub(super) fn may_leave(&self, run: &Run) -> bool {
        run.begun.is_none() && self.cores.is_none() && self.quickness.is_small(run.size) && watch().is_some()
    }

    /// Begins a run for which [`Shared::may_leave`] is true, and leaves the rest to a front thread. If the run is done at once, its instance and its
    /// answers are returned.
    pub(super) fn begin_and_leave(self: &Arc<Self>, run: Run) -> Option<(Run, Answers)> {
        let (run, answers) = self.begin(run, Duration::ZERO);
        if run.begun.is_none() {
            return Some((run, answers));
        }
        self.answer(answers);
        self.leave(run, watch());
        None
    }

    /// Takes over the output of a run. Returns the next run if this thread may begin it.
    fn take_over(self: &Arc<Self>, run: Run, start: u64) -> Option<Run> {
        let Run { at, mut instance, size, flow, .. } = run;
        let (is_done, outbox) = Outbox::around(|| self.catching(|| instance.go_on()).unwrap_or(true));
        let answers = Answers { outbox, size, ns: is_done.then(|| now_ns().saturating_sub(start)), flow: flow.clone() };
        let run = Run { at, instance, jobs: Jobs::new(), size, flow, begun: (!is_done).then_some(start) };
        if is_done {
            return self.give_back_here(run, answers, self.cores.is_none());
        }
        self.answer(answers);
        self.leave(run, watch_here());
        None
    }

    /// Has a worker wait for the rest of a run.
    fn hand_over(self: &Arc<Self>, run: Run) {
        let mut state = self.lock();
        state.ready.push_back(run);
        let work = Work { workers: self.wake_worker(&mut state), ..Work::default() };
        drop(state);
        self.carry_out(work);
    }
}

impl Begun {
    fn go_on(mut self) {
        let start = self.run.as_ref().and_then(|run| run.begun).unwrap_or_else(now_ns);
        // A long run may have large outputs, which this thread must not move. What is readable may also be a question, or the end of the process, and
        // then the worker waits. So `self` is dropped.
        if now_ns().saturating_sub(start) > TAKEN_OVER_NS_MAX {
            return;
        }
        let Some(run) = self.run.take() else { return };
        let shared = &self.shared;
        nerite_watchdog::running(&shared.watched);
        // The poll of the task that takes over an answer has no flow, so the run's own flow is charged.
        let flow = run.flow.clone();
        let next = nerite_watchdog::charging(flow.as_ref(), || shared.take_over(run, start));
        if let Some(next) = next {
            shared.run_in_a_row(next);
        }
    }
}
