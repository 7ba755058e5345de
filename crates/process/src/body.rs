//! What has the system of a model's process, and who takes it off its hands?

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child as Process, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nerite_locks::Mutex;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid};

/// A process and all that its model started in its group. Shared by the instance, which uses it, and the supervisor, which buries what
/// died with nothing to do.
pub(crate) struct Body {
    pid: Option<Pid>,
    state: Mutex<State>,
    /// The same as whether it is known how it ended, for those who must not wait.
    is_buried: AtomicBool,
}

struct State {
    process: Process,
    /// How it ended, once it has been waited for: from then on its number may be another's.
    ended: Option<ExitStatus>,
}

impl Body {
    /// The leader of a group of its own, just started.
    pub(crate) fn new(process: Process) -> Body {
        let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
        Body { pid, state: Mutex::new(State { process, ended: None }), is_buried: AtomicBool::new(false) }
    }

    /// A descriptor that is readable once the process has ended; not all systems have it.
    pub(crate) fn watch(&self) -> io::Result<OwnedFd> {
        let state = self.lock();
        match self.pid.filter(|_| state.ended.is_none()) {
            Some(pid) => Ok(pidfd_open(pid, PidfdFlags::empty())?),
            None => Err(io::ErrorKind::NotFound.into()),
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
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        state.ended.is_some() || self.pid.is_none_or(|pid| !matches!(waitid(WaitId::Pid(pid), look), Ok(None)))
    }

    /// Kills the process and whatever its model has started in its group, and waits for its end, which leaves no zombie.
    pub(crate) fn bury(&self) -> Option<ExitStatus> {
        let mut state = self.lock();
        if state.ended.is_none() {
            if let Some(group) = self.pid {
                // Fails if none is left.
                let _ = kill_process_group(group, Signal::KILL);
            }
            state.ended = state.process.wait().ok();
            self.is_buried.store(true, Ordering::Release);
        }
        state.ended
    }

    /// Whether it has ended, as far as that was noticed. Takes no lock.
    pub(crate) fn is_buried(&self) -> bool {
        self.is_buried.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Command;

    use super::*;

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
