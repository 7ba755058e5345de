//! How is a scheduler woken at the time that it requested?
//!
//! One thread serves the whole process. It is started when it is first needed. It only calls [`Wake::wake`] at the right times. A pool then decides
//! under its own lock, and its workers do the rest.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use nerite_backend::now_ns;
use nerite_locks::Mutex;

/// Something that is woken at a time.
pub(crate) trait Wake: Send + Sync {
    /// Called at that time.
    fn wake(self: Arc<Self>);
}

/// The queue of times.
#[derive(Default)]
pub(crate) struct Timer {
    state: Mutex<State>,
    earlier: Condvar,
}

#[derive(Default)]
struct State {
    /// Ordered by time, then by arrival.
    entries: BTreeMap<Key, Weak<dyn Wake>>,
    last: u64,
    runs: bool,
}

/// An entry of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    at_us: u64,
    number: u64,
}

impl Key {
    /// Its time.
    pub(crate) fn at_us(self) -> u64 {
        self.at_us
    }
}

/// Microseconds of [`now_ns`].
pub(crate) fn now_us() -> u64 {
    now_ns() / 1000
}

/// The timer of the process.
pub(crate) fn timer() -> &'static Timer {
    static TIMER: Timer =
        Timer { state: Mutex::new(State { entries: BTreeMap::new(), last: 0, runs: false }), earlier: Condvar::new() };
    &TIMER
}

impl Timer {
    /// Wakes `whom` at that time, if it still exists. Err: the system refuses the timer thread.
    ///
    /// An entry stays until its time. So if a client chose the time, the caller must forget the entry when it is not
    /// needed any more.
    pub(crate) fn wake_at(&'static self, at_us: u64, whom: Weak<dyn Wake>) -> std::io::Result<Key> {
        let mut state = self.lock();
        if !state.runs {
            std::thread::Builder::new().name("nerite-timer".into()).spawn(|| self.run())?;
            state.runs = true;
        }
        let is_earliest = state.entries.first_key_value().is_none_or(|(first, _)| at_us < first.at_us);
        state.last += 1;
        let key = Key { at_us, number: state.last };
        state.entries.insert(key, whom);
        if is_earliest {
            self.earlier.notify_one();
        }
        Ok(key)
    }

    /// Removes an entry from the queue. If it is due already, it may still be woken.
    pub(crate) fn forget(&self, key: Key) {
        self.lock().entries.remove(&key);
    }

    /// How many entries have these times.
    #[cfg(test)]
    pub(crate) fn entries_in(&self, times_us: impl std::ops::RangeBounds<u64>) -> usize {
        self.lock().entries.keys().filter(|key| times_us.contains(&key.at_us)).count()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.lock();
        loop {
            let left_us = state.entries.first_key_value().map(|(first, _)| first.at_us.saturating_sub(now_us()));
            state = match left_us {
                None => self.earlier.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(0) => {
                    let due = state.entries.pop_first().and_then(|(_, whom)| whom.upgrade());
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

    struct RecordingWaker(&'static str, mpsc::Sender<(&'static str, u64)>);

    impl Wake for RecordingWaker {
        fn wake(self: Arc<Self>) {
            let _ = self.1.send((self.0, now_us()));
        }
    }

    #[test]
    fn each_is_woken_in_order_and_not_before_its_time() {
        let (to, woken) = mpsc::channel();
        let waker = |name| -> Arc<dyn Wake> { Arc::new(RecordingWaker(name, to.clone())) };
        let (late, gone, early) = (waker("late"), waker("gone"), waker("early"));
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
    #[test]
    fn what_is_forgotten_wakes_nobody_and_takes_no_space() {
        let (to, woken) = mpsc::channel();
        let waker = |name| -> Arc<dyn Wake> { Arc::new(RecordingWaker(name, to.clone())) };
        let (never, soon) = (waker("never"), waker("soon"));
        let far = 1 << 59;
        for number in 0..1000 {
            let key = timer().wake_at(far - number, Arc::downgrade(&never)).expect("a thread");
            timer().forget(key);
        }
        let begun_us = now_us();
        let key = timer().wake_at(begun_us + 10_000, Arc::downgrade(&never)).expect("a thread");
        timer().wake_at(begun_us + 20_000, Arc::downgrade(&soon)).expect("a thread");
        timer().forget(key);
        assert_eq!(woken.recv().map(|(name, _)| name), Ok("soon"));
        assert_eq!(timer().entries_in(far - 1000..=far), 0);
    }
}
