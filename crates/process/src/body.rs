//! What has the system of a model's process, and who takes it off its hands?

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child as Process, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nerite_locks::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, pidfd_send_signal, waitid,
};

/// Who takes a process off the system's hands that the server did not start itself: its parent.
pub trait Parent: Send + Sync {
    /// Its own number.
    fn pid(&self) -> u32;

    /// Whether the parent is there, so that an ended process keeps its number until it is reaped.
    fn is_there(&self) -> bool;

    /// Takes an ended process off the system's hands; how it ended, if the parent can tell.
    fn reap(&self, pid: u32) -> Option<ExitStatus>;
}

/// How long a killed process may take to end.
const KILLED_MAX: Duration = Duration::from_secs(2);

/// A process and all that its model started in its group. Shared by the instance, which uses it, and the supervisor, which buries what
/// died with nothing to do.
pub(crate) struct Body {
    pid: Option<Pid>,
    state: Mutex<State>,
    /// The same as whether it is known how it ended, for those who must not wait.
    is_buried: AtomicBool,
    /// What the log says if it ends by itself.
    end_message: OnceLock<String>,
}

struct State {
    process: Source,
    /// How it ended, once it has been waited for: from then on its number may be another's.
    ended: Option<Ended>,
}

/// Where it comes from.
enum Source {
    /// The server started it.
    Own(Process),
    /// A process that the server started has forked it.
    Forked(OwnedFd, Arc<dyn Parent>),
}

/// How it ended, if anybody can tell.
type Ended = Option<ExitStatus>;

impl Body {
    /// The leader of a group of its own, just started.
    pub(crate) fn new(process: Process) -> Body {
        Body::of(process.id(), Source::Own(process))
    }

    /// The same of one that `parent` has forked. A model's code may have said its number: one that is no child of the parent's is refused, for
    /// it will be killed.
    pub(crate) fn forked(pid: u32, parent: Arc<dyn Parent>) -> io::Result<Body> {
        let number = number_of(pid).ok_or(io::ErrorKind::InvalidInput)?;
        let end = pidfd_open(number, PidfdFlags::empty())?;
        // Looked at once it is held: its number can be nobody else's any more.
        if parent_of(pid)? != parent.pid() {
            return Err(io::Error::other(format!("process {pid} is none that process {} has forked", parent.pid())));
        }
        Ok(Body::of(pid, Source::Forked(end, parent)))
    }

    fn of(pid: u32, process: Source) -> Body {
        let state = Mutex::new(State { process, ended: None });
        Body { pid: number_of(pid), state, is_buried: AtomicBool::new(false), end_message: OnceLock::new() }
    }

    /// Its number.
    pub(crate) fn pid(&self) -> Option<Pid> {
        self.pid
    }

    /// A descriptor that is readable once the process has ended; not all systems have it.
    pub(crate) fn watch(&self) -> io::Result<OwnedFd> {
        let state = self.lock();
        match (&state.process, self.pid.filter(|_| state.ended.is_none())) {
            (Source::Forked(end, _), Some(_)) => end.try_clone(),
            (Source::Own(_), Some(pid)) => Ok(pidfd_open(pid, PidfdFlags::empty())?),
            (_, None) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Waits for its end, but not for ever: one that closed its sockets may live on.
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

    /// A look that leaves the process to be waited for: until then its number is nobody else's.
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

    /// Kills the process and whatever its model has started in its group, and waits for its end, which leaves no zombie.
    pub(crate) fn bury(&self) -> Option<ExitStatus> {
        self.end(&mut self.lock())
    }

    fn end(&self, state: &mut State) -> Ended {
        if let Some(ended) = state.ended {
            return ended;
        }
        let ended = match &mut state.process {
            Source::Own(process) => {
                self.kill_group();
                process.wait().ok()
            }
            Source::Forked(end, parent) => {
                // Without its parent, an ended process may have no number any more: it may be another's.
                if parent.is_there() || !ends_within(end, Duration::ZERO) {
                    self.kill_group();
                }
                // Fails if it has ended.
                let _ = pidfd_send_signal(&*end, Signal::KILL);
                ends_within(end, KILLED_MAX);
                self.pid.and_then(|pid| parent.reap(pid.as_raw_nonzero().get().unsigned_abs()))
            }
        };
        state.ended = Some(ended);
        self.is_buried.store(true, Ordering::Release);
        ended
    }

    fn kill_group(&self) {
        if let Some(group) = self.pid {
            // Fails if none is left.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// The same of a process that was seen to have ended. Says so where nobody has ended it.
    pub(crate) fn bury_ended(&self) {
        let mut state = self.lock();
        let by_itself = state.ended.is_none();
        self.end(&mut state);
        drop(state);
        if let Some(end_message) = self.end_message.get().filter(|_| by_itself) {
            log::error!("{end_message}");
        }
    }

    /// If it ends by itself, the log says this.
    pub(crate) fn says_when_it_ends(&self, text: String) {
        let _ = self.end_message.set(text);
    }

    /// Whether it has ended, as far as that was noticed. Takes no lock.
    pub(crate) fn is_buried(&self) -> bool {
        self.is_buried.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn number_of(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// The number of a process's parent.
fn parent_of(pid: u32) -> io::Result<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before it may contain anything.
    let after = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
    after.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether the process of that descriptor ends in that time.
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

    /// The parent of a process that this one started, as a process of a model would be of those that it forks.
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
    fn what_another_process_forked_is_killed_and_reaped_by_it() {
        for (word, by_itself, signal) in [("sleep 1000", false, Some(9)), ("exit 3", true, None)] {
            let process = Command::new("sh").args(["-c", word]).process_group(0).spawn().unwrap();
            let pid = process.id();
            let forked = Body::forked(pid, Arc::new(Here(std::sync::Mutex::new(Some(process))))).unwrap();
            let at_most = if by_itself { Duration::from_mins(1) } else { Duration::from_millis(2) };
            assert_eq!(forked.ends_within(at_most), by_itself);
            assert!(forked.watch().is_ok());
            let status = forked.bury().unwrap();
            assert_eq!((status.signal(), status.code()), (signal, by_itself.then_some(3)));
            assert!(forked.is_buried() && forked.watch().is_err() && forked.bury() == Some(status));
        }
        for nobodys in [0, 1, std::process::id(), u32::MAX] {
            assert!(Body::forked(nobodys, Arc::new(Here(std::sync::Mutex::new(None)))).is_err(), "{nobodys}");
        }
    }

    fn started(program: &str, word: &str) -> Body {
        Body::new(Command::new(program).arg(word).process_group(0).spawn().unwrap())
    }

    #[test]
    fn what_lives_is_killed_and_what_has_ended_tells_how() {
        let sleeping = started("sleep", "1000");
        assert!(!sleeping.ends_within(Duration::from_millis(2)));
        assert_eq!(sleeping.bury().unwrap().signal(), Some(9));
        assert_eq!(sleeping.bury().unwrap().signal(), Some(9), "once is enough");
        assert!(sleeping.ends_within(Duration::ZERO) && sleeping.watch().is_err());
        let ended = started("sh", "-c exit");
        assert!(ended.ends_within(Duration::from_mins(1)));
        assert_eq!(ended.bury().unwrap().signal(), None);
    }
}
