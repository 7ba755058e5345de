//! Which thread frees the pages of a client's object, if the server may have the last reference to it?
//!
//! ```text
//!   a client's mapping or descriptor ─┬─ its object has few pages, and this thread has time ─► this thread
//!                                     └─ else ─► the values of its owner ─► one nerite-free for each owner
//! ```
//! A client may unlink its object, unmap it and close it at any time. Then the server's last mapping or descriptor keeps the pages of the whole object, even
//! if it maps only one page. The kernel frees all these pages before `munmap` or `close` returns, which takes 280 ms for each GiB and cannot be
//! interrupted. So each owner has its own thread for freeing, and waits only for its own objects. If there are more owners than threads, the owners take
//! turns.
//! The values keep their permits until they are dropped. So quotas bound the regions and open objects that wait here. The guard bounds the lost pages that
//! wait.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{MutexGuard, PoisonError};
use std::thread::Builder;

use nerite_locks::Mutex;
use nerite_memory::OwnerId;

use crate::limits::FREEING_THREADS_MAX;

/// Frees the objects of all clients.
pub(crate) static FREER: Freer = Freer::new("nerite-free", FREEING_THREADS_MAX);

/// Threads that drop values. A thread is started for an owner whose values wait, and ends when nothing waits.
pub(crate) struct Freer {
    thread: &'static str,
    threads_max: usize,
    state: Mutex<State>,
}

struct State {
    /// The values of the owners that have some, or whose last one is being dropped.
    by_owner: BTreeMap<OwnerId, VecDeque<Box<dyn Send>>>,
    /// The owners in `by_owner` that have no thread, the next one first.
    turns: VecDeque<OwnerId>,
    threads: usize,
}

impl Freer {
    const fn new(thread: &'static str, threads_max: usize) -> Freer {
        let state = State { by_owner: BTreeMap::new(), turns: VecDeque::new(), threads: 0 };
        Freer { thread, threads_max, state: Mutex::new(state) }
    }

    /// Adds a value for a thread to drop. If no thread runs and none can be started, the calling thread drops the values before this returns.
    pub(crate) fn push(&'static self, owner: OwnerId, value: Box<dyn Send>) {
        if cfg!(shuttle) {
            // The tests of thread interleavings control only threads that they start, and read the counts when a call has returned.
            return drop(value);
        }
        if self.state().add(owner, value, self.threads_max) && !self.start() && self.state().is_only_thread() {
            self.work();
        }
    }

    fn start(&'static self) -> bool {
        Builder::new().name(self.thread.to_owned()).spawn(|| self.work()).is_ok()
    }

    /// Drops values until none waits for a thread.
    fn work(&self) {
        let mut served = None;
        loop {
            let Some((owner, value)) = self.state().next(served) else { return };
            // If a drop panics, the panic hook has logged it, and the remaining values must still be dropped.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(value)));
            served = Some(owner);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Adds a value. Returns whether the caller must start a thread; that thread is counted already.
    fn add(&mut self, owner: OwnerId, value: Box<dyn Send>, threads_max: usize) -> bool {
        if let Some(values) = self.by_owner.get_mut(&owner) {
            values.push_back(value);
            return false;
        }
        self.by_owner.insert(owner, VecDeque::from([value]));
        self.turns.push_back(owner);
        let starts = self.threads < threads_max;
        self.threads += usize::from(starts);
        starts
    }

    /// Reports that the thread that was counted could not be started. Returns whether no other thread runs. Then the caller drops the values itself.
    fn is_only_thread(&mut self) -> bool {
        let is_alone = self.threads == 1;
        self.threads -= usize::from(!is_alone);
        is_alone
    }

    /// The next value for a thread that has just dropped a value of the owner `served`. `None` if the thread ends.
    fn next(&mut self, served: Option<OwnerId>) -> Option<(OwnerId, Box<dyn Send>)> {
        if let Some(owner) = served {
            if self.by_owner.get(&owner).is_some_and(VecDeque::is_empty) {
                self.by_owner.remove(&owner);
            } else {
                self.turns.push_back(owner);
            }
        }
        while let Some(owner) = self.turns.pop_front() {
            if let Some(value) = self.by_owner.get_mut(&owner).and_then(VecDeque::pop_front) {
                return Some((owner, value));
            }
        }
        self.threads -= 1;
        None
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::{Duration, Instant};

    use super::*;

    const PATIENCE: Duration = Duration::from_mins(1);

    /// Sends its number when its drop begins, and waits for an answer.
    struct Halt(u32, Sender<u32>, Receiver<()>);

    impl Drop for Halt {
        fn drop(&mut self) {
            let _ = self.1.send(self.0);
            let _ = self.2.recv_timeout(PATIENCE);
        }
    }

    /// Adds a value of each of these owners, with the place in `owners` as its number. Gives the numbers of those whose drop begins, and what ends each.
    fn push(freer: &'static Freer, owners: &[OwnerId]) -> (Receiver<u32>, Vec<Option<Sender<()>>>) {
        let (begun, begins) = channel();
        let mut ends = Vec::new();
        for (number, owner) in owners.iter().enumerate() {
            let (end, ended) = channel();
            freer.push(*owner, Box::new(Halt(number as u32, begun.clone(), ended)));
            ends.push(Some(end));
        }
        (begins, ends)
    }

    #[track_caller]
    fn begin(begins: &Receiver<u32>, count: usize) -> Vec<u32> {
        let mut found: Vec<_> = (0..count).map(|_| begins.recv_timeout(PATIENCE).unwrap()).collect();
        found.sort_unstable();
        assert!(begins.recv_timeout(Duration::from_millis(20)).is_err(), "more than {found:?} begin");
        found
    }

    #[track_caller]
    fn comes_to_an_end(freer: &Freer) {
        let begun = Instant::now();
        while freer.state().threads > 0 && begun.elapsed() < PATIENCE {
            std::thread::yield_now();
        }
        let state = freer.state();
        assert!(state.threads == 0 && state.by_owner.is_empty() && state.turns.is_empty());
    }

    #[test]
    fn an_owner_whose_object_takes_long_delays_no_other_one() {
        static FREER: Freer = Freer::new("test-owners", 64);
        let (begins, mut ends) = push(&FREER, &[1, 1, 1, 2, 3]);
        assert_eq!(begin(&begins, 3), [0, 3, 4]);
        ends[3].take();
        assert_eq!(begin(&begins, 0), []);
        ends[0].take();
        assert_eq!(begin(&begins, 1), [1]);
        ends.clear();
        assert_eq!(begin(&begins, 1), [2]);
        comes_to_an_end(&FREER);
    }

    #[test]
    fn owners_without_a_thread_take_turns() {
        static FREER: Freer = Freer::new("test-turns", 1);
        let (begins, mut ends) = push(&FREER, &[1, 1, 1, 2, 3, 2]);
        for number in [0, 3, 4, 1, 5, 2] {
            assert_eq!(begin(&begins, 1), [number]);
            ends[number as usize].take();
        }
        comes_to_an_end(&FREER);
    }

    #[test]
    fn a_thread_that_cannot_be_started_is_replaced_by_the_caller_if_no_other_one_runs() {
        let mut state = State { by_owner: BTreeMap::new(), turns: VecDeque::new(), threads: 0 };
        assert!(state.add(1, Box::new(()), 2) && !state.add(1, Box::new(()), 2));
        assert!(state.add(2, Box::new(()), 2) && !state.is_only_thread());
        assert!(!state.add(3, Box::new(()), 1) && state.is_only_thread());
        let mut served = None;
        let mut order = Vec::new();
        while let Some((owner, _)) = state.next(served) {
            order.push(owner);
            served = Some(owner);
        }
        assert_eq!((order, state.threads, state.by_owner.len()), (vec![1, 2, 3, 1], 0, 0));
    }
}
