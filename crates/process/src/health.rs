//! Does the process of an instance live, and when is a new one started after its death?
//!
//! The instance starts it when a request needs it. Clients may send no requests to a model that is not ready, so a readiness check starts it too: on
//! a separate thread, one at a time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError, Weak};

use nerite_backend::{Readiness, ReadinessDone, now_ns};
use nerite_locks::Mutex;
use nerite_request::Status;

use crate::backoff::{Backoff, Life};
use crate::blocks::Blocks;
use crate::calls::lock;
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
    /// Whether the last process was given a batch. Requests note it without the lock.
    is_used: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The last process that was started, and the time in ns.
    process: Option<(Started, u64)>,
    /// The error of the last failure, if there was no good process since.
    failed: Option<Status>,
    backoff: Backoff,
    /// Whether the end of the last process was taken into account.
    is_end_noted: bool,
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
        let (state, started, is_used) = (Mutex::default(), Condvar::new(), AtomicBool::new(false));
        Arc::new(Health { launcher, blocks, sizes, placement, state, started, is_used })
    }

    /// Starts the first process, or a new one after a death. After failures there is a pause before the next start ([`Backoff`]), and until then the
    /// answer is the last error. This may wait, so do not call it on a front thread.
    pub(crate) fn start(&self) -> Result<Live, Status> {
        let mut state = self.lock();
        while state.is_starting {
            state = self.started.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(live) = state.next.take() {
            return Ok(live);
        }
        if let Some(status) = self.refusal(&mut state) {
            return Err(status);
        }
        state.is_starting = true;
        let (is_first, backoff) = (state.process.is_none(), state.backoff);
        drop(state);
        let live = self.launch(is_first, backoff);
        let mut state = self.lock();
        let notify = self.settle(&mut state, live.as_ref());
        drop(state);
        notify();
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

    /// Notes that the last process was given a batch.
    pub(crate) fn note_used(&self) {
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    /// The error of the last failure, while the pause before the next start lasts.
    fn refusal(&self, state: &mut State) -> Option<Status> {
        self.note_end(state);
        let wait_ns = state.backoff.wait_ns(now_ns());
        state.failed.clone().filter(|_| wait_ns > 0)
    }

    /// Takes the end of the last process into account, once.
    fn note_end(&self, state: &mut State) {
        let Some((process, started_ns)) = &state.process else { return };
        let Some(ended_ns) = process.os_process.ended_ns().filter(|_| !state.is_end_noted) else { return };
        let life = Life { started_ns: *started_ns, ended_ns, is_used: self.is_used.load(Ordering::Relaxed) };
        state.is_end_noted = true;
        state.backoff.ended(life);
        // The first end of this kind costs no pause, even after a start that failed.
        let pause_ns = state.backoff.wait_ns(now_ns());
        state.failed = (pause_ns > 0).then(|| {
            let why =
                format!("its process ended before it was used; the next one is started in {} s", seconds(pause_ns));
            Status::unavailable(self.launcher.unhealthy(&why))
        });
    }

    fn launch(&self, is_first: bool, backoff: Backoff) -> Result<Live, Status> {
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
                seconds(backoff.after_failure(now_ns()).pause_ns())
            );
            Status::new(status.code, self.launcher.unhealthy(&why))
        })
    }

    /// Notes the result of a start. The returned function calls the waiting callbacks, without the lock.
    fn settle(&self, state: &mut State, started: Result<&Live, &Status>) -> impl FnOnce() + use<> {
        state.is_starting = false;
        match started {
            Ok(live) => {
                (state.process, state.failed) = (Some((live.started(), now_ns())), None);
                state.is_end_noted = false;
                self.is_used.store(false, Ordering::Relaxed);
            }
            Err(status) => {
                state.backoff.start_failed(now_ns());
                state.failed = Some(status.clone());
            }
        }
        self.started.notify_all();
        let waiting = std::mem::take(&mut state.waiting);
        let answer = started.map(drop).map_err(Status::clone);
        move || waiting.into_iter().for_each(|done| done(answer.clone()))
    }

    /// Starts a process for a readiness check.
    fn revive(&self, backoff: Backoff) {
        // This thread was made for it and ends with it.
        self.placement.apply();
        let live = self.launch(false, backoff);
        let mut state = self.lock();
        let notify = self.settle(&mut state, live.as_ref());
        let spare = if state.is_over { live.ok() } else { std::mem::replace(&mut state.next, live.ok()) };
        drop(state);
        drop(spare);
        notify();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Whole seconds, rounded up.
fn seconds(ns: u64) -> u64 {
    ns.div_ceil(1_000_000_000)
}

impl Readiness for Health {
    fn check(self: Arc<Self>, done: ReadinessDone) {
        let mut state = self.lock();
        if let Some((process, _)) = state.process.as_ref().filter(|(process, _)| !process.os_process.is_reaped()) {
            let decides = process.decides.as_ref().map(Weak::upgrade);
            drop(state);
            return match decides {
                Some(Some(calls)) => calls.check_ready(done),
                // It has closed its channel for calls, so it will end soon.
                Some(None) => done(Err(Status::unavailable(self.launcher.unhealthy("its process is ending")))),
                None => done(Ok(())),
            };
        }
        if let Some(status) = self.refusal(&mut state) {
            drop(state);
            return done(Err(status));
        }
        let backoff = state.backoff;
        state.waiting.push(done);
        if std::mem::replace(&mut state.is_starting, true) {
            return;
        }
        drop(state);
        let health = Arc::clone(&self);
        let started =
            std::thread::Builder::new().name("nerite-revive".to_owned()).spawn(move || health.revive(backoff));
        if let Err(error) = started {
            let why = format!("no thread to start its process anew: {error}; raise the limit on threads");
            let status = Status::unavailable(self.launcher.unhealthy(&why));
            let notify = self.settle(&mut self.lock(), Err(&status));
            notify();
        }
    }

    fn fault(&self) -> Option<Status> {
        let mut state = self.lock();
        self.note_end(&mut state);
        let is_gone = state.process.as_ref().is_some_and(|(process, _)| process.os_process.is_reaped());
        state.failed.clone().filter(|_| is_gone)
    }
}
