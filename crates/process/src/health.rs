//! Does the process of an instance live, and when is a new one started after its death?
//!
//! The instance starts it when a request needs it. Clients may send no requests to a model that is not ready, so a readiness check starts it too: on
//! a separate thread, one at a time.

use std::sync::{Arc, Condvar, MutexGuard, PoisonError, Weak};

use nerite_backend::{Readiness, ReadinessDone, now_ns};
use nerite_locks::Mutex;
use nerite_request::Status;

use crate::blocks::Blocks;
use crate::calls::lock;
use crate::limits::RESTART_PAUSE;
use crate::live::{Live, ProcessLauncher, Started};
use crate::placement::Placement;
use crate::plan::Sizes;

/// The state of an instance's processes, shared by the instance and readiness checks.
pub(crate) struct Health {
    pub(crate) launcher: Arc<dyn ProcessLauncher>,
    pub(crate) blocks: Arc<Blocks>,
    /// The size of each output in the last response.
    pub(crate) sizes: Sizes,
    /// The cores and the memory policy of its processes.
    placement: Placement,
    state: Mutex<State>,
    started: Condvar,
}

#[derive(Default)]
struct State {
    /// The last process that was started.
    process: Option<Started>,
    /// The time and the error of a failed start.
    failed: Option<(u64, Status)>,
    is_starting: bool,
    /// A process that a readiness check started. The instance uses it for the next request.
    next: Option<Live>,
    /// The callbacks of readiness checks that wait for it.
    waiting: Vec<ReadinessDone>,
    /// Whether the instance has ended.
    is_over: bool,
}

impl Health {
    pub(crate) fn new(launcher: Arc<dyn ProcessLauncher>, blocks: Arc<Blocks>) -> Arc<Health> {
        let (placement, sizes) = (Placement::of_thread(), Sizes::default());
        Arc::new(Health { launcher, blocks, sizes, placement, state: Mutex::default(), started: Condvar::new() })
    }

    /// Starts the first process, or a new one after a death. A new start is attempted at most once in [`RESTART_PAUSE`], because a model that cannot
    /// start must not keep the machine busy. This may wait, so do not call it on a front thread.
    pub(crate) fn start(&self) -> Result<Live, Status> {
        let mut state = self.lock();
        while state.is_starting {
            state = self.started.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(live) = state.next.take() {
            return Ok(live);
        }
        if let Some(status) = state.recent_failure() {
            return Err(status);
        }
        state.is_starting = true;
        let is_first = state.process.is_none();
        drop(state);
        let live = self.launch(is_first);
        let mut state = self.lock();
        let told = self.settle(&mut state, live.as_ref());
        drop(state);
        told();
        live
    }

    /// Ends its processes, because the instance has ended.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.is_over = true;
        let next = state.next.take();
        drop(state);
        drop(next);
    }

    fn launch(&self, is_first: bool) -> Result<Live, Status> {
        if !is_first {
            log::warn!("starting the process of model instance '{}' anew", self.launcher.instance());
        }
        let started = self.launcher.launch().and_then(|mut live| {
            live.hear_calls(&self.launcher, &self.blocks, &self.sizes)?;
            Ok(live)
        });
        started.map_err(|status| {
            if is_first {
                return status;
            }
            let why = format!(
                "its process ended and could not be started anew: {}; it is tried again with the next request after {} s",
                status.message,
                RESTART_PAUSE.as_secs()
            );
            Status::new(status.code, self.launcher.unhealthy(&why))
        })
    }

    /// Notes the result of a start. The returned function calls the waiting callbacks, without the lock.
    fn settle(&self, state: &mut State, started: Result<&Live, &Status>) -> impl FnOnce() + use<> {
        state.is_starting = false;
        match started {
            Ok(live) => (state.process, state.failed) = (Some(live.started()), None),
            Err(status) => state.failed = Some((now_ns(), status.clone())),
        }
        self.started.notify_all();
        let waiting = std::mem::take(&mut state.waiting);
        let answer = started.map(drop).map_err(Status::clone);
        move || waiting.into_iter().for_each(|done| done(answer.clone()))
    }

    /// Starts a process for a readiness check.
    fn revive(&self) {
        // This thread was made for it and ends with it.
        self.placement.apply();
        let live = self.launch(false);
        let mut state = self.lock();
        let told = self.settle(&mut state, live.as_ref());
        let spare = if state.is_over { live.ok() } else { std::mem::replace(&mut state.next, live.ok()) };
        drop(state);
        drop(spare);
        told();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn recent_failure(&self) -> Option<Status> {
        let (at, status) = self.failed.as_ref()?;
        (now_ns().saturating_sub(*at) < RESTART_PAUSE.as_nanos() as u64).then(|| status.clone())
    }
}

impl Readiness for Health {
    fn ask(self: Arc<Self>, done: ReadinessDone) {
        let mut state = self.lock();
        if let Some(process) = state.process.as_ref().filter(|process| !process.body.is_buried()) {
            let decides = process.decides.as_ref().map(Weak::upgrade);
            drop(state);
            return match decides {
                Some(Some(calls)) => calls.ask_ready(done),
                // It has closed its channel for calls, so it will end soon.
                Some(None) => done(Err(Status::unavailable(self.launcher.unhealthy("its process is ending")))),
                None => done(Ok(())),
            };
        }
        if let Some(status) = state.recent_failure() {
            drop(state);
            return done(Err(status));
        }
        state.waiting.push(done);
        if std::mem::replace(&mut state.is_starting, true) {
            return;
        }
        drop(state);
        let health = Arc::clone(&self);
        let started = std::thread::Builder::new().name("nerite-revive".to_owned()).spawn(move || health.revive());
        if let Err(error) = started {
            let why = format!("no thread to start its process anew: {error}; raise the limit on threads");
            let status = Status::unavailable(self.launcher.unhealthy(&why));
            let told = self.settle(&mut self.lock(), Err(&status));
            told();
        }
    }

    fn fault(&self) -> Option<Status> {
        let state = self.lock();
        let is_gone = state.process.as_ref().is_some_and(|process| process.body.is_buried());
        state.failed.as_ref().filter(|_| is_gone).map(|(_, status)| status.clone())
    }
}
