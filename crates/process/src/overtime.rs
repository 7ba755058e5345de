//! How is a process ended if it takes too long to execute a batch?
//!
//! A thread of the instance checks the time, because no thread waits for the process while the front threads handle its batch. The thread kills a
//! process that takes too long. Then the instance continues as after any other end of a process. Instances without a limit have no such thread.

use std::io;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nerite_locks::Mutex;

use crate::calls::lock;
use crate::channel::Channel;
use crate::os_process::OsProcess;

/// The shortest pause between two checks of the time.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// How long a process may take to execute a batch.
#[derive(Clone, Debug)]
pub struct ExecuteLimit {
    /// The time.
    pub at_most: Duration,
    /// Where it is set, for the error.
    pub setting: &'static str,
}

/// The limit of one instance, and the batch that its process executes.
pub(crate) struct Overtime {
    limit: ExecuteLimit,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    begun: Option<Begun>,
    /// Whether the thread waits for a batch.
    is_idle: bool,
    /// Whether the instance has ended.
    is_over: bool,
}

struct Begun {
    at: Instant,
    os_process: Arc<OsProcess>,
    channel: Arc<Channel>,
}

impl Begun {
    /// Whether a packet of the process is there to be read: its answer, or a question for memory.
    fn has_said(&self) -> bool {
        self.channel.wait(Duration::ZERO).unwrap_or(true)
    }
}

impl Overtime {
    /// Starts the thread.
    pub(crate) fn start(limit: ExecuteLimit) -> io::Result<Arc<Overtime>> {
        let overtime = Arc::new(Overtime { limit, state: Mutex::default(), changed: Condvar::new() });
        let watches = Arc::clone(&overtime);
        std::thread::Builder::new().name("nerite-overtime".to_owned()).spawn(move || watches.watch())?;
        Ok(overtime)
    }

    /// Notes that the process has got a batch.
    pub(crate) fn begins(&self, os_process: &Arc<OsProcess>, channel: &Arc<Channel>) {
        let mut state = lock(&self.state);
        state.begun =
            Some(Begun { at: Instant::now(), os_process: Arc::clone(os_process), channel: Arc::clone(channel) });
        if state.is_idle {
            self.changed.notify_all();
        }
    }

    /// Notes that the process has answered or has ended.
    pub(crate) fn ends(&self) {
        lock(&self.state).begun = None;
    }

    /// Ends the thread, because the instance has ended.
    pub(crate) fn close(&self) {
        lock(&self.state).is_over = true;
        self.changed.notify_all();
    }

    fn watch(&self) {
        let mut state = lock(&self.state);
        while !state.is_over {
            let left = state.begun.as_ref().map(|begun| self.limit.at_most.saturating_sub(begun.at.elapsed()));
            state = match left {
                None => self.wait_for_batch(state),
                Some(Duration::ZERO) if state.begun.as_ref().is_some_and(Begun::has_said) => {
                    // It may be a question, after which the process goes on, so the batch stays watched.
                    self.changed.wait_timeout(state, PAUSE_MIN).unwrap_or_else(PoisonError::into_inner).0
                }
                Some(Duration::ZERO) => {
                    let begun = state.begun.take();
                    drop(state);
                    if let Some(begun) = begun {
                        self.kill(&begun);
                    }
                    lock(&self.state)
                }
                Some(left) => {
                    let waited = self.changed.wait_timeout(state, left.max(PAUSE_MIN));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn wait_for_batch<'s>(&self, mut state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        state.is_idle = true;
        let mut state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.is_idle = false;
        state
    }

    fn kill(&self, begun: &Begun) {
        let ExecuteLimit { at_most, setting } = &self.limit;
        begun.os_process.kill(format!(
            "its process was killed, because execute did not return within {} s, the limit of {setting},",
            at_most.as_secs_f64()
        ));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;
    use crate::child::how_it_ended;

    const FOREVER: Duration = Duration::from_mins(1);

    fn sleeping() -> Arc<OsProcess> {
        Arc::new(OsProcess::new(Command::new("sleep").arg("1000").process_group(0).spawn().unwrap()))
    }

    #[test]
    fn a_process_that_takes_too_long_is_killed_and_others_are_not() {
        let at_most = Duration::from_millis(20);
        let overtime = Overtime::start(ExecuteLimit { at_most, setting: "a setting" }).unwrap();
        let (channel, theirs) = Channel::pair().unwrap();
        let (channel, theirs) = (Arc::new(channel), Channel::from(theirs));
        let (answered, hangs) = (sleeping(), sleeping());
        overtime.begins(&answered, &channel);
        overtime.ends();
        // Its answer is there to be read.
        theirs.send("{}", &[]).unwrap();
        overtime.begins(&answered, &channel);
        assert!(!answered.ends_within(5 * at_most));
        overtime.ends();
        channel.receive(&mut crate::channel::Packet::default()).unwrap();
        // The process asks for memory, and hangs after it got the memory.
        theirs.send("{}", &[]).unwrap();
        overtime.begins(&hangs, &channel);
        assert!(!hangs.ends_within(5 * at_most));
        channel.receive(&mut crate::channel::Packet::default()).unwrap();
        assert!(hangs.ends_within(FOREVER) && !answered.ends_within(Duration::ZERO));
        assert_eq!(
            how_it_ended(&hangs),
            "its process was killed, because execute did not return within 0.02 s, the limit of a setting,"
        );
        answered.kill_and_reap();
        overtime.close();
    }
}
