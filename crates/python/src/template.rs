//! How do the instances of a model share the data that its `initialize` loaded?
//!
//! ```text
//!   server ── initialize, fork, reap ──► template: imports the model, runs initialize once, runs no batches
//!                                           │ fork
//!          ◄── channels of its own ──► instance, instance, …: the template's memory, copy-on-write
//! ```
//!
//! The template is started for the first instance. If it ends, its instances continue, and another template is started for the next instance.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nerite_backend::LoadStop;
use nerite_locks::Mutex;
use nerite_process::packets::{FORK, Reap, Said};
use nerite_process::{Channel, Child, Parent, PrintedPipes, ProcessName, ProcessWork, SideEnd, Silence, Supervisor};
use nerite_request::Status;

use crate::launch::Launch;
use crate::limits::ANSWER_MAX;

/// The time limit of a template's answer that it has reaped a process. It is short, because the template has no other work and its callers must not
/// be delayed.
const REAP_MAX: Duration = Duration::from_millis(100);

/// The template of one version of a model.
pub(crate) struct Template {
    supervisor: Supervisor,
    launch: Launch,
    /// The model's name.
    model: String,
    name: ProcessName,
    /// The command that initializes it.
    command: String,
    process: Mutex<Option<Arc<Process>>>,
}

/// A running template.
struct Process {
    child: Mutex<Child>,
    /// Its process ID.
    pid: u32,
    /// Whether it has ended or did not answer in time. It is not used any more then, because a later answer could belong to an earlier command.
    is_useless: AtomicBool,
    /// Processes that have ended and were not reaped yet.
    unreaped: Mutex<Vec<u32>>,
    /// The channel for calls stays open, as for an instance. The template makes no calls.
    _calls: Channel,
}

impl Template {
    /// A template that is not started yet.
    pub(crate) fn new(supervisor: Supervisor, launch: Launch, model: &str, command: String) -> Template {
        let name = ProcessName::new(model, ProcessWork::Template);
        Template { supervisor, launch, model: model.to_owned(), name, command, process: Mutex::default() }
    }

    /// Forks a process with the model. Also returns the server's end of its channel for calls.
    pub(crate) fn fork(&self, name: &ProcessName, stop: &LoadStop) -> Result<(Child, Channel), Status> {
        // The lock is held for the whole fork. Instances of one model are made one after another.
        let mut process = lock(&self.process);
        if let Some(running) = &*process {
            match running.fork(&self.supervisor, &self.launch, name) {
                Ok(forked) => return Ok(forked),
                Err(why) => log::error!("{}", self.unusable(&format!("{why}; another one is started"))),
            }
        }
        let fresh = process.insert(Arc::new(self.start(stop)?));
        fresh.fork(&self.supervisor, &self.launch, name).map_err(|why| Status::internal(self.unusable(&why)))
    }

    fn start(&self, stop: &LoadStop) -> Result<Process, Status> {
        let began = Instant::now();
        let started = self.launch.start(&self.supervisor, &self.name);
        let (mut child, calls) = started.map_err(|error| self.launch.unstarted(error, began))?;
        child
            .says_when_it_ends(self.unusable("its process ended; its instances live on, and the next one has another"));
        let phase = format!("model '{}': imports and initialize", self.model);
        let answer = child.first(&self.command, &phase, stop).map_err(|silence| {
            let why = format!("{silence} while it initialized the model, with interpreter {}", self.launch.interpreter);
            let blame = self.launch.blame(&silence, began);
            blame.unwrap_or_else(|| Status::internal(self.unusable(&why) + &child.last_lines()))
        })?;
        if let Some(Some(error)) = answer.error() {
            return Err(Status::internal(error));
        }
        self.launch.interpreter.check_version(answer.ready().python.unwrap_or("unknown"))?;
        Ok(Process {
            pid: child.pid(),
            child: Mutex::new(child),
            is_useless: AtomicBool::new(false),
            unreaped: Mutex::default(),
            _calls: calls,
        })
    }

    fn unusable(&self, why: &str) -> String {
        format!("the template of model '{}' (SHARE_INITIALIZE) cannot be used: {why}", self.model)
    }
}

impl Process {
    /// Forks a process. Err: the reason why there is none.
    fn fork(
        self: &Arc<Process>,
        supervisor: &Supervisor,
        launch: &Launch,
        name: &ProcessName,
    ) -> Result<(Child, Channel), String> {
        let system = |error: std::io::Error| error.to_string();
        let (channel, channel_theirs) = Channel::pair().map_err(system)?;
        let (side, side_theirs) = SideEnd::pair().map_err(system)?;
        let (calls, calls_theirs) = Channel::pair().map_err(system)?;
        let printed = PrintedPipes::quoting_both(name).map_err(system)?;
        let mut child = lock(&self.child);
        self.reap_all(&mut child);
        let theirs = [channel_theirs, side_theirs, calls_theirs, printed.output.into(), printed.error.into()];
        let at_most = launch.phase_max.unwrap_or(ANSWER_MAX);
        let answer = self.request(&mut child, FORK, &theirs, at_most).map_err(|silence| silence.to_string())?;
        drop(child);
        let pid = answer.forked().ok_or_else(|| answer.error().flatten().unwrap_or("it forked nothing").to_owned())?;
        let parent = Arc::clone(self) as Arc<dyn Parent>;
        let forked = Child::adopt(supervisor, pid, parent, (channel, side), launch.timeouts()).map_err(system)?;
        forked.log_start(name);
        Ok((forked.with_output(printed.quoted), calls))
    }

    fn request(
        &self,
        child: &mut Child,
        command: &str,
        theirs: &[OwnedFd],
        at_most: Duration,
    ) -> Result<Said, Silence> {
        if self.is_useless.load(Ordering::Relaxed) {
            return Err(Silence::Closed);
        }
        let answer = child.request_within(command, theirs, at_most);
        if answer.is_err() {
            self.is_useless.store(true, Ordering::Relaxed);
        }
        answer
    }

    /// Makes the template reap the processes that have ended. Returns how the last one ended.
    fn reap_all(&self, child: &mut Child) -> Option<ExitStatus> {
        let ended = std::mem::take(&mut *lock(&self.unreaped));
        let mut reap = |pid: u32| self.request(child, &Reap(pid).to_string(), &[], REAP_MAX).ok()?.reaped();
        ended.into_iter().map(|pid| reap(pid).map(ExitStatus::from_raw)).last().flatten()
    }
}

impl Parent for Process {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn is_there(&self) -> bool {
        // If the lock is held, another thread is using the process, so it counts as running.
        self.child.try_lock().map_or(true, |child| !child.has_ended())
    }

    fn reap(&self, pid: u32) -> Option<ExitStatus> {
        lock(&self.unreaped).push(pid);
        // If another thread uses the template, this does not wait. The process is then reaped before the next fork.
        let mut child = self.child.try_lock().ok()?;
        self.reap_all(&mut child)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
