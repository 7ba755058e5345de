//! Who wakes a scheduler at the time it asked for?
//!
//! One thread for all pools of the process, started when it is first needed. It only tells the time: what follows is decided under the
//! pool's lock and done by its workers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use nerite_backend::now_ns;
use nerite_locks::Mutex;

/// Something that wants to know when a time has come.
pub(crate) trait Wake: Send + Sync {
    /// The time has come.
    fn wake(self: Arc<Self>);
}

/// Times, and who wants to know of them.
#[derive(Default)]
pub(crate) struct Timer {
    state: Mutex<State>,
    earlier: Condvar,
}

#[derive(Default)]
struct State {
    /// By time, then in the order they came.
    entries: BinaryHeap<Reverse<Entry>>,
    last: u64,
    runs: bool,
}

struct Entry {
    at_us: u64,
    number: u64,
    whom: Weak<dyn Wake>,
}

impl Entry {
    fn key(&self) -> (u64, u64) {
        (self.at_us, self.number)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// Microseconds of [`now_ns`].
pub(crate) fn now_us() -> u64 {
    now_ns() / 1000
}

/// The timer of the process.
pub(crate) fn timer() -> &'static Timer {
    static TIMER: Timer = Timer {
        state: Mutex::new(State { entries: BinaryHeap::new(), last: 0, runs: false }),
        earlier: Condvar::new(),
    };
    &TIMER
}

impl Timer {
    /// Has `whom` woken at that time, if it still is there. The error of the system if it refuses the thread that does so.
    pub(crate) fn wake_at(&'static self, at_us: u64, whom: Weak<dyn Wake>) -> std::io::Result<()> {
        let mut state = self.lock();
        if !state.runs {
            std::thread::Builder::new().name("nerite-timer".into()).spawn(|| self.run())?;
            state.runs = true;
        }
        let is_earliest = state.entries.peek().is_none_or(|Reverse(first)| at_us < first.at_us);
        state.last += 1;
        let number = state.last;
        state.entries.push(Reverse(Entry { at_us, number, whom }));
        if is_earliest {
            self.earlier.notify_one();
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.lock();
        loop {
            let left_us = state.entries.peek().map(|Reverse(first)| first.at_us.saturating_sub(now_us()));
            state = match left_us {
                None => self.earlier.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(0) => {
                    let due = state.entries.pop().and_then(|Reverse(first)| first.whom.upgrade());
                    drop(state);
                    if let Some(whom) = due
                        && catch_unwind(AssertUnwindSafe(|| whom.wake())).is_err()
                    {
                        log::error!("a scheduler panicked when its time had come; the others go on");
                    }
                    self.lock()
                }
                Some(left_us) => {
                    let left = Duration::from_micros(left_us);
                    self.earlier.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    struct Bell(&'static str, mpsc::Sender<(&'static str, u64)>);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            let _ = self.1.send((self.0, now_us()));
        }
    }

    #[test]
    fn each_is_woken_in_order_and_not_before_its_time() {
        let (to, woken) = mpsc::channel();
        let bell = |name| -> Arc<dyn Wake> { Arc::new(Bell(name, to.clone())) };
        let (late, gone, early) = (bell("late"), bell("gone"), bell("early"));
        let begun_us = now_us();
        for (whom, after_us) in [(&late, 20_000), (&gone, 10_000), (&early, 5_000)] {
            assert!(timer().wake_at(begun_us + after_us, Arc::downgrade(whom)).is_ok());
        }
        drop(gone);
        for (name, after_us) in [("early", 5_000), ("late", 20_000)] {
            let (who, at_us) = woken.recv().expect("it is woken");
            assert!(who == name && at_us >= begun_us + after_us, "{who} at {at_us}");
        }
    }
}
