//! How is the operating system's process of a model watched, killed and reaped?

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child as Process, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nerite_backend::now_ns;
use nerite_locks::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, pidfd_send_signal, waitid,
};

use crate::backoff::Served;

/// The parent of a process that the server did not start itself. It reaps the process.
pub trait Parent: Send + Sync {
    /// Its process ID.
    fn pid(&self) -> u32;

    /// Whether the parent lives. Then an ended process keeps its ID until it is reaped.
    fn is_there(&self) -> bool;

    /// Reaps an ended process. Returns how it ended, if the parent knows.
    fn reap(&self, pid: u32) -> Option<ExitStatus>;
}

/// How long a killed process may take to end.
const KILLED_MAX: Duration = Duration::from_secs(2);

/// A process, and all processes of its model in its group. It is shared by the instance, which uses it, and the supervisor, which reaps it if it dies
/// while it is idle.
pub(crate) struct OsProcess {
    pid: Option<Pid>,
    state: Mutex<State>,
    /// Whether it was reaped, for callers that must not wait for the lock.
    is_reaped: AtomicBool,
    /// The time in ns at which it was reaped. 0 before.
    ended_ns: AtomicU64,
    /// The text for the log if it ends unexpectedly.
    end_message: OnceLock<String>,
    /// Why the server killed it, if it did so by [`OsProcess::kill`].
    killed_because: OnceLock<String>,
    /// Whether it got a request.
    had_request: AtomicBool,
    /// Whether it has answered a request.
    has_answered: AtomicBool,
}

/// Called once when the process was reaped.
pub(crate) type EndNotice = Box<dyn FnOnce() + Send>;

struct State {
    process: Source,
    /// Called by the supervisor.
    notice: Option<EndNotice>,
    /// How it ended, once it was reaped. From then on, its ID may belong to another process.
    ended: Option<Ended>,
}

/// How it was started.
enum Source {
    /// The server started it.
    Own(Process),
    /// A process that the server started forked it.
    Forked(OwnedFd, Arc<dyn Parent>),
}

/// How it ended, if that is known.
type Ended = Option<ExitStatus>;

impl OsProcess {
    /// A process that was just started as the leader of its own group.
    pub(crate) fn new(process: Process) -> OsProcess {
        OsProcess::of(process.id(), Source::Own(process))
    }

    /// A process that `parent` has forked. The ID may come from a model's code, and the process will be killed, so it is refused if it is no child of
    /// the parent.
    pub(crate) fn forked(pid: u32, parent: Arc<dyn Parent>) -> io::Result<OsProcess> {
        let number = number_of(pid).ok_or(io::ErrorKind::InvalidInput)?;
        let end = pidfd_open(number, PidfdFlags::empty())?;
        // The parent is checked after the pidfd was opened, so that the ID cannot be used by another process meanwhile.
        if parent_of(pid)? != parent.pid() {
            return Err(io::Error::other(format!("process {pid} is none that process {} has forked", parent.pid())));
        }
        Ok(OsProcess::of(pid, Source::Forked(end, parent)))
    }

    fn of(pid: u32, process: Source) -> OsProcess {
        let state = Mutex::new(State { process, notice: None, ended: None });
        let (is_reaped, ended_ns) = (AtomicBool::new(false), AtomicU64::new(0));
        OsProcess {
            pid: number_of(pid),
            state,
            is_reaped,
            ended_ns,
            end_message: OnceLock::new(),
            killed_because: OnceLock::new(),
            had_request: AtomicBool::new(false),
            has_answered: AtomicBool::new(false),
        }
    }

    /// Its process ID.
    pub(crate) fn pid(&self) -> Option<Pid> {
        self.pid
    }

    /// A descriptor that becomes readable when the process ends. Not all systems support it.
    pub(crate) fn watch(&self) -> io::Result<OwnedFd> {
        let state = self.lock();
        match (&state.process, self.pid.filter(|_| state.ended.is_none())) {
            (Source::Forked(end, _), Some(_)) => end.try_clone(),
            (Source::Own(_), Some(pid)) => Ok(pidfd_open(pid, PidfdFlags::empty())?),
            (_, None) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Waits for its end, with a limit: a process that closed its sockets may still run.
    #[expect(
        clippy::disallowed_methods,
        reason = "the kernel wakes nobody when a child of another thread ends; callers are no front threads"
    )]
    pub(crate) fn ends_within(&self, at_most: Duration) -> bool {
        let deadline = Instant::now() + at_most;
        while !self.has_ended() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Whether it has ended, without reaping it. Until it is reaped, its ID is not used again.
    fn has_ended(&self) -> bool {
        let state = self.lock();
        if state.ended.is_some() {
            return true;
        }
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match &state.process {
            Source::Own(_) => self.pid.is_none_or(|pid| !matches!(waitid(WaitId::Pid(pid), look), Ok(None))),
            Source::Forked(end, _) => ends_within(end, Duration::ZERO),
        }
    }

    /// Kills the process and its group, and reaps it. Returns how it ended.
    pub(crate) fn kill_and_reap(&self) -> Option<ExitStatus> {
        self.end(&mut self.lock())
    }

    fn end(&self, state: &mut State) -> Ended {
        if let Some(ended) = state.ended {
            return ended;
        }
        let ended = match &mut state.process {
            Source::Own(process) => {
                self.kill_group();
                // The process may have left its group. If it were not killed here, the wait would last until it ends by itself.
                let _ = process.kill();
                process.wait().ok()
            }
            Source::Forked(end, parent) => {
                // If the parent has ended, the ID of an ended process may belong to another one.
                if parent.is_there() || !ends_within(end, Duration::ZERO) {
                    self.kill_group();
                }
                // This fails if it has ended.
                let _ = pidfd_send_signal(&*end, Signal::KILL);
                ends_within(end, KILLED_MAX);
                self.pid.and_then(|pid| parent.reap(pid.as_raw_nonzero().get().unsigned_abs()))
            }
        };
        state.ended = Some(ended);
        self.ended_ns.store(now_ns(), Ordering::Relaxed);
        self.is_reaped.store(true, Ordering::Release);
        ended
    }

    /// Kills the process and its group, for this reason. It is reaped as if it had ended by itself.
    pub(crate) fn kill(&self, why: String) {
        let mut state = self.lock();
        if state.ended.is_some() {
            return;
        }
        let _ = self.killed_because.set(why);
        match &mut state.process {
            Source::Own(process) => {
                self.kill_group();
                let _ = process.kill();
            }
            Source::Forked(end, parent) => {
                if parent.is_there() || !ends_within(end, Duration::ZERO) {
                    self.kill_group();
                }
                let _ = pidfd_send_signal(&*end, Signal::KILL);
            }
        }
    }

    /// Why the server killed it, if it did so by [`OsProcess::kill`].
    pub(crate) fn killed_because(&self) -> Option<&str> {
        self.killed_because.get().map(String::as_str)
    }

    fn kill_group(&self) {
        if let Some(group) = self.pid {
            // This fails if no process is left in the group.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Reaps a process that has ended. Logs it if the server did not end it.
    pub(crate) fn reap_ended(&self) {
        let mut state = self.lock();
        let by_itself = state.ended.is_none();
        self.end(&mut state);
        let notice = state.notice.take();
        drop(state);
        if let Some(end_message) = self.end_message.get().filter(|_| by_itself) {
            log::error!("{end_message}");
        }
        if let Some(notice) = notice {
            notice();
        }
    }

    /// Calls `notice` on the supervisor's thread when the process has ended, or on this thread if it has ended already. `notice` must not wait.
    pub(crate) fn when_ended(&self, notice: EndNotice) {
        let mut state = self.lock();
        if state.ended.is_none() {
            state.notice = Some(notice);
            return;
        }
        drop(state);
        notice();
    }

    /// Notes that it got a request.
    pub(crate) fn note_request(&self) {
        note(&self.had_request);
    }

    /// Notes that it has answered a request.
    pub(crate) fn note_answer(&self) {
        note(&self.has_answered);
    }

    /// What it has done for requests so far.
    pub(crate) fn served(&self) -> Served {
        match (self.had_request.load(Ordering::Relaxed), self.has_answered.load(Ordering::Relaxed)) {
            (_, true) => Served::Answered,
            (true, false) => Served::Unanswered,
            (false, false) => Served::Nothing,
        }
    }

    /// Sets the text for the log if it ends unexpectedly.
    pub(crate) fn says_when_it_ends(&self, text: String) {
        let _ = self.end_message.set(text);
    }

    /// The time in ns at which it was reaped. `None` before. Takes no lock.
    pub(crate) fn ended_ns(&self) -> Option<u64> {
        self.is_reaped().then(|| self.ended_ns.load(Ordering::Relaxed))
    }

    /// Whether it was reaped. Takes no lock.
    pub(crate) fn is_reaped(&self) -> bool {
        self.is_reaped.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets a flag. If it is set already, this writes nothing, so that threads do not wait for each other's cache line.
fn note(flag: &AtomicBool) {
    if !flag.load(Ordering::Relaxed) {
        flag.store(true, Ordering::Relaxed);
    }
}

fn number_of(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// The ID of a process's parent.
fn parent_of(pid: u32) -> io::Result<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The process name before it may contain any characters.
    let after = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
    after.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether the process of that pidfd ends within that time.
fn ends_within(end: &OwnedFd, at_most: Duration) -> bool {
    let at_most = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
    poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&at_most)).is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Command;

    use super::*;

    /// The parent of a process that the test started. It reaps the process as a template does with the processes that it forks.
    struct Here(std::sync::Mutex<Option<Process>>);

    impl Parent for Here {
        fn pid(&self) -> u32 {
            std::process::id()
        }

        fn is_there(&self) -> bool {
            true
        }

        fn reap(&self, pid: u32) -> Option<ExitStatus> {
            let mut process = self.0.lock().unwrap().take().filter(|process| process.id() == pid)?;
            process.wait().ok()
        }
    }

    #[test]
    fn a_process_that_another_one_forked_is_killed_and_reaped_by_its_parent() {
        for (word, by_itself, signal) in [("sleep 1000", false, Some(9)), ("exit 3", true, None)] {
            let process = Command::new("sh").args(["-c", word]).process_group(0).spawn().unwrap();
            let pid = process.id();
            let forked = OsProcess::forked(pid, Arc::new(Here(std::sync::Mutex::new(Some(process))))).unwrap();
            let at_most = if by_itself { Duration::from_mins(1) } else { Duration::from_millis(2) };
            assert_eq!(forked.ends_within(at_most), by_itself);
            assert!(forked.watch().is_ok());
            let status = forked.kill_and_reap().unwrap();
            assert_eq!((status.signal(), status.code()), (signal, by_itself.then_some(3)));
            assert!(forked.is_reaped() && forked.watch().is_err() && forked.kill_and_reap() == Some(status));
        }
        for nobodys in [0, 1, std::process::id(), u32::MAX] {
            assert!(OsProcess::forked(nobodys, Arc::new(Here(std::sync::Mutex::new(None)))).is_err(), "{nobodys}");
        }
    }

    fn started(program: &str, word: &str) -> OsProcess {
        OsProcess::new(Command::new(program).arg(word).process_group(0).spawn().unwrap())
    }

    #[test]
    fn the_end_of_a_process_is_reported_once_whether_before_or_after_somebody_asks() {
        let count = Arc::new(AtomicU64::new(0));
        let notice = || {
            let count = Arc::clone(&count);
            Box::new(move || {
                count.fetch_add(1, Ordering::Relaxed);
            })
        };
        let sleeping = started("sleep", "1000");
        sleeping.when_ended(notice());
        // The supervisor is notified of every end, also of this process, which is reaped already.
        sleeping.kill_and_reap();
        assert_eq!(count.load(Ordering::Relaxed), 0);
        sleeping.reap_ended();
        sleeping.reap_ended();
        assert_eq!(count.load(Ordering::Relaxed), 1);
        sleeping.when_ended(notice());
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_process_that_has_left_its_group_is_killed_too() {
        let in_our_group = Command::new("sleep").arg("1000").spawn().unwrap();
        assert_eq!(OsProcess::new(in_our_group).kill_and_reap().unwrap().signal(), Some(9));
    }

    #[test]
    fn a_running_process_is_killed_and_an_ended_one_reports_how() {
        let sleeping = started("sleep", "1000");
        assert!(!sleeping.ends_within(Duration::from_millis(2)));
        assert_eq!(sleeping.kill_and_reap().unwrap().signal(), Some(9));
        assert_eq!(sleeping.kill_and_reap().unwrap().signal(), Some(9), "once is enough");
        assert!(sleeping.ends_within(Duration::ZERO) && sleeping.watch().is_err());
        let ended = started("sh", "-c exit");
        assert!(ended.ends_within(Duration::from_mins(1)));
        assert_eq!(ended.kill_and_reap().unwrap().signal(), None);
    }
}
