//! Does the process of an instance live, and when is a new one started after its death?
//!
//! A thread starts the next process when the supervisor has reaped the last one, and again after each failure, with pauses ([`Backoff`]). A request
//! that arrives before that starts it itself, after the pause. Until a process lives again, the instance is not ready, for readiness checks and for
//! callers that only read the state.

use std::sync::{Arc, Condvar, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use nerite_backend::{LoadStop, Readiness, ReadinessDone, now_ns};
use nerite_locks::Mutex;
use nerite_request::Status;

use crate::backoff::{Backoff, Life};
use crate::blocks::Blocks;
use crate::calls::lock;
use crate::live::{Hearing, Live, ProcessLauncher, Started};
use crate::placement::Placement;
use crate::plan::Sizes;

/// The state of an instance's processes, shared by the instance, the thread that starts them anew, and readiness checks.
pub(crate) struct Health {
    me: Weak<Health>,
    pub(crate) launcher: Arc<dyn ProcessLauncher>,
    pub(crate) blocks: Arc<Blocks>,
    /// The size of each output in the last response.
    pub(crate) sizes: Sizes,
    /// The cores and the memory policy of its processes.
    placement: Placement,
    /// Ends a start that is under way.
    stop: LoadStop,
    state: Mutex<State>,
    /// Notified when a start has ended, and when the instance has.
    changed: Condvar,
    /// Called when a process has died and when the next one is ready ([`Readiness::watch`]). The caller must not hold the lock of `state`, because
    /// the callback takes it.
    watcher: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

#[derive(Default)]
struct State {
    /// The last process that was started.
    process: Option<Running>,
    /// How many were started.
    processes: u64,
    /// The error of the last failure, if there was no good process since.
    failed: Option<Status>,
    backoff: Backoff,
    /// Whether the end of the last process was taken into account.
    is_end_noted: bool,
    is_starting: bool,
    /// Whether a thread starts the next process, now or after the pause.
    has_thread: bool,
    /// A process that was started ahead of the next request, which uses it.
    next: Option<Live>,
    /// Whether there was no thread to start the next process. Only a request or a readiness check starts it.
    is_unattended: bool,
    /// The callbacks of readiness checks that wait for it.
    waiting: Vec<ReadinessDone>,
    /// Whether the instance has ended.
    is_over: bool,
}

/// A process that was started.
struct Running {
    process: Started,
    /// How long its start took.
    start_took_ns: u64,
    /// When its start was done.
    started_ns: u64,
}

impl Running {
    /// Its life, if it has ended.
    fn life(&self) -> Option<Life> {
        let (ended_ns, served) = (self.process.os_process.ended_ns()?, self.process.os_process.served());
        Some(Life { start_took_ns: self.start_took_ns, started_ns: self.started_ns, ended_ns, served })
    }
}

impl State {
    /// Whether there was a process, and it has ended.
    fn is_down(&self) -> bool {
        self.process.as_ref().is_some_and(|running| running.process.os_process.is_reaped())
    }
}

impl Health {
    pub(crate) fn new(launcher: Arc<dyn ProcessLauncher>, blocks: Arc<Blocks>) -> Arc<Health> {
        let (placement, sizes) = (Placement::of_thread(), Sizes::default());
        let (state, changed, watcher) = (Mutex::default(), Condvar::new(), Mutex::default());
        let stop = LoadStop::default();
        Arc::new_cyclic(|me| Health {
            me: Weak::clone(me),
            launcher,
            blocks,
            sizes,
            placement,
            stop,
            state,
            changed,
            watcher,
        })
    }

    /// Starts the first process, or a new one after a death. This waits for the pause after deaths at requests ([`Backoff`]). During the pause after other
    /// failures, the answer is the last error. This may wait, so do not call it on a front thread.
    pub(crate) fn start(&self) -> Result<Live, Status> {
        let mut state = self.lock();
        loop {
            if let Some(live) = state.next.take() {
                return Ok(live);
            }
            if state.is_starting {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if let Some(status) = self.refusal(&mut state) {
                return Err(status);
            }
            if state.is_over {
                return Err(self.over());
            }
            let pause = Duration::from_nanos(state.backoff.wait_ns(now_ns()));
            if pause.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.is_starting = true;
        let (is_first, backoff) = (state.process.is_none(), state.backoff);
        drop(state);
        let began_ns = now_ns();
        let live = self.launch(is_first, backoff);
        let mut state = self.lock();
        let notify = self.settle(&mut state, began_ns, live.as_ref());
        drop(state);
        notify();
        live
    }

    /// Ends its processes, because the instance has ended.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.is_over = true;
        let next = state.next.take();
        self.changed.notify_all();
        drop(state);
        self.end_start("its instance has ended");
        let watcher = lock(&self.watcher).take();
        drop(watcher);
        drop(next);
    }

    /// Ends a start that is under way, and all later ones, for this reason.
    pub(crate) fn end_start(&self, why: &str) {
        self.stop.stop(why);
    }

    /// The error of the last failure, while the pause before the next start lasts.
    fn refusal(&self, state: &mut State) -> Option<Status> {
        self.note_end(state);
        let wait_ns = state.backoff.wait_ns(now_ns());
        state.failed.clone().filter(|_| wait_ns > 0)
    }

    /// Takes the end of the last process into account, once.
    fn note_end(&self, state: &mut State) {
        let ended = state.process.as_ref().filter(|_| !state.is_end_noted).and_then(Running::life);
        let Some(life) = ended else { return };
        state.is_end_noted = true;
        state.backoff.ended(life);
        // The first end of this kind costs no pause, even after a start that failed.
        let pause_ns = state.backoff.wait_ns(now_ns());
        state.failed = (pause_ns > 0 && state.backoff.is_refusing()).then(|| {
            let why = format!(
                "its process ended early, as the one before, and had answered no request; the next one is started in {} s",
                seconds(pause_ns)
            );
            Status::unavailable(self.launcher.unhealthy(&why))
        });
    }

    fn launch(&self, is_first: bool, backoff: Backoff) -> Result<Live, Status> {
        if !is_first {
            log::warn!("starting the process of model instance '{}' anew", self.launcher.instance());
            self.launcher.restarts().add_one();
        }
        let hearing = Hearing { launcher: &self.launcher, blocks: &self.blocks, sizes: &self.sizes, stop: &self.stop };
        let started = self.launcher.launch(&hearing).and_then(|mut live| {
            hearing.begin(&mut live)?;
            live.calls.iter().for_each(|calls| calls.note_initialized());
            live.child.set_instance(self.launcher.instance());
            Ok(live)
        });
        started.map_err(|status| {
            if is_first {
                return status;
            }
            let why = format!(
                "its process ended and could not be started anew: {}; it is tried again in {} s",
                status.message,
                seconds(backoff.after_failure(now_ns()).pause_ns())
            );
            Status::new(status.code, self.launcher.unhealthy(&why))
        })
    }

    /// Notes the result of a start that began at that time. The returned function is called without the lock. It calls the waiting callbacks, and watches the process.
    fn settle(&self, state: &mut State, began_ns: u64, started: Result<&Live, &Status>) -> impl FnOnce() + use<> {
        state.is_starting = false;
        state.is_unattended = false;
        match started {
            Ok(live) => {
                let (process, started_ns) = (live.started(), now_ns());
                state.process =
                    Some(Running { process, start_took_ns: started_ns.saturating_sub(began_ns), started_ns });
                state.failed = None;
                state.processes += 1;
                state.is_end_noted = false;
            }
            Err(status) => {
                state.backoff.start_failed(now_ns());
                state.failed = Some(status.clone());
            }
        }
        self.changed.notify_all();
        let waiting = std::mem::take(&mut state.waiting);
        let answer = started.map(drop).map_err(Status::clone);
        let os_process = started.ok().map(|live| Arc::clone(&live.child.os_process));
        let me = Weak::clone(&self.me);
        move || {
            if let Some(health) = me.upgrade() {
                health.tell_watcher();
            }
            for done in waiting {
                done(answer.clone());
            }
            let revive = move || {
                if let Some(health) = me.upgrade() {
                    health.revive();
                }
            };
            match os_process {
                Some(os_process) => os_process.when_ended(Box::new(revive)),
                None => revive(),
            }
        }
    }

    /// Makes sure that a thread starts the next process, if the last one has ended. This does not wait.
    fn revive(&self) {
        let (mut state, Some(me)) = (self.lock(), self.me.upgrade()) else { return };
        if state.is_over || state.has_thread || !state.is_down() {
            return;
        }
        let thread = std::thread::Builder::new().name("nerite-revive".to_owned());
        let Err(error) = thread.spawn(move || me.keep_alive()) else {
            state.has_thread = true;
            return;
        };
        state.is_unattended = true;
        if state.is_starting {
            // A request starts the process, and calls the waiting callbacks.
            return;
        }
        let why = format!("no thread to start its process anew: {error}; raise the limit on threads");
        let status = Status::unavailable(self.launcher.unhealthy(&why));
        log::error!("{status}");
        state.backoff.start_failed(now_ns());
        state.failed = Some(status.clone());
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for done in waiting {
            done(Err(status.clone()));
        }
    }

    /// Starts processes until one lives, with pauses between the starts. This is the whole work of its thread.
    fn keep_alive(&self) {
        // The watcher is called here and not by the supervisor, which reports the death and must not wait.
        self.tell_watcher();
        self.placement.apply();
        while let Some(backoff) = self.wait_for_turn() {
            let began_ns = now_ns();
            let live = self.launch(false, backoff);
            let mut state = self.lock();
            let notify = self.settle(&mut state, began_ns, live.as_ref());
            let spare = if state.is_over { live.ok() } else { std::mem::replace(&mut state.next, live.ok()) };
            drop(state);
            drop(spare);
            notify();
        }
    }

    /// Waits for the end of the pause. `None` if a process lives, or the instance has ended.
    fn wait_for_turn(&self) -> Option<Backoff> {
        let mut state = self.lock();
        while state.is_down() && !state.is_over {
            self.note_end(&mut state);
            let pause = Duration::from_nanos(state.backoff.wait_ns(now_ns()));
            state = if state.is_starting {
                self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else if pause.is_zero() {
                state.is_starting = true;
                return Some(state.backoff);
            } else {
                self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0
            };
        }
        state.has_thread = false;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for done in waiting {
            done(Err(self.over()));
        }
        None
    }

    fn tell_watcher(&self) {
        let watcher = lock(&self.watcher).clone();
        if let Some(watcher) = watcher {
            watcher();
        }
    }

    fn over(&self) -> Status {
        Status::unavailable(self.launcher.unhealthy("its instance has ended"))
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
        let alive = state.process.as_ref().filter(|running| !running.process.os_process.is_reaped());
        if let Some(running) = alive {
            let decides = running.process.decides.as_ref().map(Weak::upgrade);
            drop(state);
            return match decides {
                Some(Some(calls)) => calls.check_ready(done),
                // The process has closed its channel for calls, so it will end soon.
                Some(None) => done(Err(Status::unavailable(self.launcher.unhealthy("its process is ending")))),
                None => done(Ok(())),
            };
        }
        if let Some(status) = self.refusal(&mut state) {
            drop(state);
            return done(Err(status));
        }
        if state.is_over {
            drop(state);
            return done(Err(self.over()));
        }
        state.waiting.push(done);
        drop(state);
        self.revive();
    }

    fn fault(&self) -> Option<Status> {
        let mut state = self.lock();
        self.note_end(&mut state);
        let starting = || Status::unavailable(self.launcher.unhealthy("its process ended, and is being started anew"));
        state.is_down().then(|| state.failed.clone().unwrap_or_else(starting))
    }

    fn is_down(&self) -> bool {
        let state = self.lock();
        state.is_down() && !state.is_unattended && !state.is_over
    }

    fn watch(&self, changed: Box<dyn Fn() + Send + Sync>) {
        *lock(&self.watcher) = Some(Arc::from(changed));
    }

    fn processes(&self) -> u64 {
        self.lock().processes
    }
}
