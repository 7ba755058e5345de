//! Which thread unmaps memory whose last user is gone?
//!
//! ```text
//!   last Buffer, Slot or registration ─► Deferred::drop ─┬─ small, or in `here` ──────────────► this thread
//!                                                         ├─ large ──────────► queue ─────────► nerite-unmap
//!                                                         └─ a GPU's driver has it ─► queue ──► nerite-unlock
//! ```
//!
//! The kernel takes 20 to 40 ms to unmap 1 GiB that was used, and up to 200 ms if it frees the pages as well. A driver takes longer, and may never return.
//! The last user may be a request that ends on a thread which serves other clients. So memory that takes long is passed to a thread of its own, which ends
//! when its queue is empty. Memory that a driver has locked or opened has a second thread, so a driver that does not return keeps only such memory.
//! In both queues, owners take turns. The first queue is that of [`nerite_memory::UNMAPPER`], which unmaps private memory as well.
//!
//! What is passed on includes the entry in the guard's table, the quota and the charge. So the owner pays until the memory is unmapped, the quotas bound
//! the queue, and the addresses are not reused before. Before a session is refused a lease, its own memory that waits is unmapped ([`drop_waiting`]).
//! A call that registers or unregisters regions uses [`here`]: the memory is unmapped when it returns, unless another thread held
//! it for a moment. A model's process has no quotas. Its server decides what is mapped there.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use nerite_memory::{Queue, UNMAPPER};

use crate::limits::{UNMAPPED_HERE_BYTES_MAX, UNMAPPED_HERE_POLL_TIME_MAX, UNMAPPED_HERE_TOGETHER_BYTES_MAX};

/// Memory that is unmapped when the value is dropped.
pub(crate) trait Unmap: Send + 'static {
    /// The bytes that are unmapped.
    fn byte_size(&self) -> usize;

    /// The tally of the owner who pays for them. 0 if nobody does.
    fn owner(&self) -> OwnerId {
        0
    }

    /// Whether a GPU's driver is asked before they are.
    fn needs_driver(&self) -> bool {
        false
    }
}

pub(crate) use nerite_memory::OwnerId;

/// A value that is dropped on another thread if that takes long.
pub(crate) struct Deferred<T: Unmap>(Option<T>);

impl<T: Unmap> Deferred<T> {
    pub(crate) fn new(value: T) -> Deferred<T> {
        Deferred(Some(value))
    }
}

impl<T: Unmap> Deref for Deferred<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("only drop takes the value")
    }
}

impl<T: Unmap> DerefMut for Deferred<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("only drop takes the value")
    }
}

impl<T: Unmap> Drop for Deferred<T> {
    fn drop(&mut self) {
        let Some(value) = self.0.take() else { return };
        let owner = value.owner();
        let is_late = nerite_watchdog::busy_for() > UNMAPPED_HERE_POLL_TIME_MAX;
        match choose(RULE.get(), value.byte_size(), is_late, value.needs_driver()) {
            Dropper::ThisThread => drop(value),
            Dropper::Unmapper => UNMAPPER.push(owner, Box::new(value)),
            Dropper::Unlocker => UNLOCKER.push(owner, Box::new(value)),
        }
    }
}

/// What holds for the values that this thread drops now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Large ones are passed on, and small ones if the poll of this thread has taken long already.
    BySize,
    /// All are passed on.
    PassOn,
    /// All are dropped here.
    Here,
}

/// Who drops a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dropper {
    ThisThread,
    Unmapper,
    Unlocker,
}

/// `is_late` says that the poll of this thread has taken long already.
fn choose(rule: Rule, byte_size: usize, is_late: bool, needs_driver: bool) -> Dropper {
    match rule {
        Rule::Here => Dropper::ThisThread,
        _ if needs_driver => Dropper::Unlocker,
        Rule::BySize if byte_size <= UNMAPPED_HERE_BYTES_MAX && !is_late => Dropper::ThisThread,
        Rule::BySize | Rule::PassOn => Dropper::Unmapper,
    }
}

thread_local! {
    static RULE: Cell<Rule> = const { Cell::new(Rule::BySize) };
}

/// Does `work`. This thread unmaps all memory that `work` drops the last user of, so it must be a thread that may take long.
pub(crate) fn here<T>(work: impl FnOnce() -> T) -> T {
    under(Rule::Here, work)
}

/// Drops values of `bytes` bytes together. If they are many bytes, all their memory is passed on, also small mappings.
pub(crate) fn drop_together<T>(values: T, bytes: u64) {
    let is_much = bytes > UNMAPPED_HERE_TOGETHER_BYTES_MAX;
    if is_much && RULE.get() == Rule::BySize { under(Rule::PassOn, || drop(values)) } else { drop(values) }
}

/// Drops one value of this owner that waits, on this thread. If none waits, waits for the one that the unmapping thread drops now. Does not wait for a GPU's
/// driver. Returns whether there was a value. This thread must be one that may take long.
pub(crate) fn drop_waiting(owner: OwnerId) -> bool {
    let waiting = UNMAPPER.take_of(owner).or_else(|| UNLOCKER.take_of(owner));
    waiting.map(drop).is_some() || UNMAPPER.wait_for(owner)
}

fn under<T>(rule: Rule, work: impl FnOnce() -> T) -> T {
    let _until_the_end = Restore(RULE.replace(rule));
    work()
}

struct Restore(Rule);

impl Drop for Restore {
    fn drop(&mut self) {
        RULE.set(self.0);
    }
}

static UNLOCKER: Queue = Queue::new("nerite-unlock");

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use super::*;

    const LITTLE: usize = UNMAPPED_HERE_BYTES_MAX;
    const MUCH: usize = UNMAPPED_HERE_BYTES_MAX + 1;

    /// Sends the name of the thread that drops it.
    struct Reporting {
        to: Sender<Option<String>>,
        byte_size: usize,
        needs_driver: bool,
        panics: bool,
    }

    impl Unmap for Reporting {
        fn byte_size(&self) -> usize {
            self.byte_size
        }

        fn needs_driver(&self) -> bool {
            self.needs_driver
        }
    }

    impl Drop for Reporting {
        fn drop(&mut self) {
            let _ = self.to.send(thread::current().name().map(str::to_owned));
            assert!(!self.panics, "as the test wants");
        }
    }

    fn reporting(
        byte_size: usize,
        needs_driver: bool,
        panics: bool,
    ) -> (Deferred<Reporting>, Receiver<Option<String>>) {
        let (to, dropped_by) = channel();
        (Deferred::new(Reporting { to, byte_size, needs_driver, panics }), dropped_by)
    }

    #[track_caller]
    fn check(byte_size: usize, needs_driver: bool, scope: fn(Deferred<Reporting>), expect: Option<&str>) {
        let (value, dropped_by) = reporting(byte_size, needs_driver, false);
        scope(value);
        let mine = thread::current().name().map(str::to_owned);
        assert_eq!(dropped_by.recv().unwrap(), expect.map(str::to_owned).or(mine));
    }

    #[test]
    fn large_memory_and_that_of_a_driver_is_dropped_by_a_thread_of_its_own() {
        check(LITTLE, false, drop, None);
        check(MUCH, false, drop, Some("nerite-unmap"));
        check(0, true, drop, Some("nerite-unlock"));
        check(MUCH, true, drop, Some("nerite-unlock"));
    }

    #[test]
    fn small_mappings_are_passed_on_when_the_poll_has_taken_long_already() {
        let (other, other_by) = reporting(LITTLE, false, false);
        let (late, late_by) = reporting(LITTLE, false, false);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(nerite_watchdog::watched(nerite_watchdog::FrontEnd::Http, async {
            while nerite_watchdog::busy_for() <= UNMAPPED_HERE_POLL_TIME_MAX {
                std::hint::spin_loop();
            }
            drop(late);
        }));
        drop(other);
        assert_eq!(late_by.recv().unwrap().as_deref(), Some("nerite-unmap"));
        assert_eq!(other_by.recv().unwrap().as_deref(), thread::current().name());
    }

    #[test]
    fn a_call_that_may_take_long_drops_all_memory_itself() {
        check(MUCH, false, |value| here(|| drop(value)), None);
        check(MUCH, true, |value| here(|| drop(value)), None);
        check(MUCH, false, |value| here(|| drop_together(value, u64::MAX)), None);
    }

    #[test]
    fn small_mappings_that_are_dropped_together_are_passed_on_if_they_are_much() {
        check(1, false, |value| drop_together(value, UNMAPPED_HERE_TOGETHER_BYTES_MAX), None);
        check(1, false, |value| drop_together(value, UNMAPPED_HERE_TOGETHER_BYTES_MAX + 1), Some("nerite-unmap"));
    }

    #[test]
    fn a_drop_that_panics_does_not_keep_the_next_ones() {
        let (values, dropped_by): (Vec<_>, Vec<_>) = (0..3).map(|n| reporting(MUCH, false, n == 1)).unzip();
        drop(values);
        for one in dropped_by {
            assert_eq!(one.recv().unwrap().as_deref(), Some("nerite-unmap"));
        }
    }
}
