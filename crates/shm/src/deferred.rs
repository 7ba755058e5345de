//! Which thread unmaps memory whose last user is gone?
//!
//! ```text
//!   last Buffer, Slot or registration ─► Deferred::drop ─┬─ small, or in `unmap_on_this_thread` ─► this thread
//!                                                         ├─ a lease, large ─► queue ─────────► nerite-unmap
//!                                                         ├─ a client's object, large or with many pages ─► nerite-free
//!                                                         └─ a GPU's driver has it ─► queue ──► nerite-unlock
//! ```
//!
//! The kernel takes 20 to 40 ms to unmap 1 GiB that was used, and up to 200 ms if it frees the pages as well. A driver takes longer, and may never return.
//! The last user may be a request that ends on a thread which serves other clients. So memory that takes long is passed to a thread of its own, which ends
//! when its queue is empty. Memory that a driver has locked or opened has a second thread, so a driver that does not return keeps only such memory.
//! In both queues, owners take turns. The first queue is that of [`nerite_memory::UNMAPPER`], which unmaps private memory as well. The object of a client may
//! have more pages than are mapped here, and the client can make the server its last user. So it has threads of its own ([`crate::freeing`]).
//! A value that is passed on includes its entry in the guard's table, its quota permit and its charge. So the owner pays until the memory is unmapped, the
//! quotas bound the queue, and the addresses are not reused earlier. Before a session is refused a lease, its own memory in the queues is unmapped
//! ([`drop_waiting`]). A call that registers or unregisters regions uses [`unmap_on_this_thread`]: the memory is unmapped when the call returns, with two
//! exceptions. Another thread may have held the memory for a moment, or it is part of a client's object that takes long to free. The caller can wait for such
//! memory without occupying a thread ([`keep_until_freed`]). A model's process has no quotas, because its server decides what is mapped there.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Instant;

use nerite_memory::{Queue, UNMAPPER};

use crate::freeing::FREER;
use crate::limits::{UNMAPPED_HERE_BYTES_MAX, UNMAPPED_HERE_POLL_TIME_MAX, UNMAPPED_HERE_TOGETHER_BYTES_MAX};

/// Memory that is unmapped when the value is dropped.
pub(crate) trait Unmap: Send + 'static {
    /// The bytes that are unmapped.
    fn byte_size(&self) -> usize;

    /// Identifies the owner who pays for the bytes. 0 if nobody pays.
    fn owner(&self) -> OwnerId {
        0
    }

    /// Whether a GPU's driver must be called before the bytes are unmapped.
    fn needs_driver(&self) -> bool {
        false
    }

    /// Whether the value refers to a client's object. If it is the last reference, dropping it frees the pages of the whole object.
    fn is_of_client(&self) -> bool {
        false
    }

    /// Whether the client's object has few pages now. Called only for a reference to such an object, and only if this thread would drop the value.
    fn frees_little(&self) -> bool {
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

    /// Drops the value on this thread. Use this if something else still holds the memory that would take long to unmap.
    pub(crate) fn drop_here(mut self) {
        drop(self.0.take());
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
        match choose(RULE.get(), is_late(), &value) {
            Dropper::ThisThread => drop(value),
            Dropper::Unmapper => UNMAPPER.push(owner, Box::new(value)),
            Dropper::Unlocker => UNLOCKER.push(owner, Box::new((value, kept()))),
            // The kept value is dropped after `value`, in the order of the tuple.
            Dropper::Freer => FREER.push(owner, Box::new((value, kept()))),
        }
    }
}

/// Where the values that this thread drops now are unmapped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Large values are passed on. Small values are passed on only if the poll of this thread has taken long already.
    BySize,
    /// All values are passed on.
    PassOn,
    /// All values are dropped on this thread, except references to clients' objects that take long to free.
    Here,
}

/// Who drops a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dropper {
    ThisThread,
    Unmapper,
    Unlocker,
    Freer,
}

/// `is_late` says that the poll of this thread, or its present call, has taken long already.
fn choose(rule: Rule, is_late: bool, value: &impl Unmap) -> Dropper {
    let (is_little, is_of_client) = (value.byte_size() <= UNMAPPED_HERE_BYTES_MAX, value.is_of_client());
    match rule {
        Rule::Here if !is_of_client => Dropper::ThisThread,
        _ if value.needs_driver() => Dropper::Unlocker,
        Rule::Here if !is_late && value.frees_little() => Dropper::ThisThread,
        Rule::BySize if is_little && !is_late && (!is_of_client || value.frees_little()) => Dropper::ThisThread,
        _ if is_of_client => Dropper::Freer,
        _ => Dropper::Unmapper,
    }
}

thread_local! {
    static RULE: Cell<Rule> = const { Cell::new(Rule::BySize) };
    /// When the call of [`unmap_on_this_thread`] on this thread began.
    static HERE_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
    /// The value that is kept until all objects that this thread passes on are freed.
    static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) };
}

/// The value of the present call of [`keep_until_freed`]. A destructor of an ending thread may call this when the thread-local values are gone.
fn kept() -> Option<Kept> {
    KEPT.try_with(|kept| kept.borrow().clone()).ok().flatten()
}

/// Whether the poll or the call of [`unmap_on_this_thread`] on this thread has taken long already.
fn is_late() -> bool {
    let longest = UNMAPPED_HERE_POLL_TIME_MAX;
    nerite_watchdog::busy_for() > longest || HERE_SINCE.get().is_some_and(|since| since.elapsed() > longest)
}

/// Runs `work`. This thread unmaps all memory whose last user `work` drops, so it must be a thread that may take long. References to a client's object that
/// takes long to free are still passed on, because all clients may share this thread.
pub(crate) fn unmap_on_this_thread<T>(work: impl FnOnce() -> T) -> T {
    let _until_the_end = RestoreSince(HERE_SINCE.replace(Some(Instant::now())));
    under(Rule::Here, work)
}

struct RestoreSince(Option<Instant>);

impl Drop for RestoreSince {
    fn drop(&mut self) {
        HERE_SINCE.set(self.0);
    }
}

type Kept = Arc<dyn Any + Send + Sync>;

/// Runs `work`. `kept` is dropped when `work` has returned and all clients' objects that this thread passed on meanwhile are freed. So a call that
/// unregisters a region can answer when the owner's quota is free again.
pub fn keep_until_freed<T>(kept: Arc<dyn Any + Send + Sync>, work: impl FnOnce() -> T) -> T {
    let _until_the_end = RestoreKept(KEPT.replace(Some(kept)));
    work()
}

struct RestoreKept(Option<Kept>);

impl Drop for RestoreKept {
    fn drop(&mut self) {
        KEPT.set(self.0.take());
    }
}

/// Drops values of `bytes` bytes together. If they are many bytes, all of them are passed on, small mappings too.
pub(crate) fn drop_together<T>(values: T, bytes: u64) {
    let is_much = bytes > UNMAPPED_HERE_TOGETHER_BYTES_MAX;
    if is_much && RULE.get() == Rule::BySize { under(Rule::PassOn, || drop(values)) } else { drop(values) }
}

/// Takes one waiting value of this owner from a queue and drops it on this thread. If no value of the owner waits, waits until the unmapping thread has
/// dropped the owner's value that it is dropping now. Does not wait for a GPU's driver. Returns whether there was a value. This thread must be one that may
/// take long.
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
        client: Client,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Client {
        Nobody,
        WithFewPages,
        WithManyPages,
    }

    impl Unmap for Reporting {
        fn byte_size(&self) -> usize {
            self.byte_size
        }

        fn needs_driver(&self) -> bool {
            self.needs_driver
        }

        fn is_of_client(&self) -> bool {
            self.client != Client::Nobody
        }

        fn frees_little(&self) -> bool {
            self.client == Client::WithFewPages
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
        reporting_of(Client::Nobody, byte_size, needs_driver, panics)
    }

    fn reporting_of(
        client: Client,
        byte_size: usize,
        needs_driver: bool,
        panics: bool,
    ) -> (Deferred<Reporting>, Receiver<Option<String>>) {
        let (to, dropped_by) = channel();
        (Deferred::new(Reporting { to, byte_size, needs_driver, panics, client }), dropped_by)
    }

    #[track_caller]
    fn check_of(client: Client, byte_size: usize, scope: fn(Deferred<Reporting>), expect: Option<&str>) {
        let (value, dropped_by) = reporting_of(client, byte_size, false, false);
        scope(value);
        let mine = thread::current().name().map(str::to_owned);
        assert_eq!(dropped_by.recv().unwrap(), expect.map(str::to_owned).or(mine));
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
        check(MUCH, false, |value| unmap_on_this_thread(|| drop(value)), None);
        check(MUCH, true, |value| unmap_on_this_thread(|| drop(value)), None);
        check(MUCH, false, |value| unmap_on_this_thread(|| drop_together(value, u64::MAX)), None);
    }

    #[test]
    fn small_mappings_that_are_dropped_together_are_passed_on_if_they_are_much() {
        check(1, false, |value| drop_together(value, UNMAPPED_HERE_TOGETHER_BYTES_MAX), None);
        check(1, false, |value| drop_together(value, UNMAPPED_HERE_TOGETHER_BYTES_MAX + 1), Some("nerite-unmap"));
    }

    #[test]
    fn a_clients_object_is_dropped_where_it_is_only_if_it_has_few_pages() {
        const FREER: Option<&str> = Some("nerite-free");
        fn within_here(value: Deferred<Reporting>) {
            unmap_on_this_thread(|| drop(value));
        }
        fn within_late_here(value: Deferred<Reporting>) {
            unmap_on_this_thread(|| {
                while !is_late() {
                    std::hint::spin_loop();
                }
                drop(value);
            });
        }
        for (client, byte_size, scope, expect) in [
            (Client::WithFewPages, LITTLE, drop as fn(_), None),
            (Client::WithFewPages, MUCH, drop, FREER),
            (Client::WithManyPages, 1, drop, FREER),
            (Client::WithFewPages, MUCH, within_here, None),
            (Client::WithManyPages, 1, within_here, FREER),
            (Client::WithFewPages, 1, within_late_here, FREER),
            (Client::Nobody, MUCH, within_late_here, None),
            (Client::WithManyPages, 1, |value| drop_together(value, u64::MAX), FREER),
            (Client::WithManyPages, 1, Deferred::drop_here, None),
        ] {
            check_of(client, byte_size, scope, expect);
        }
    }

    #[test]
    fn a_value_is_kept_until_what_was_passed_on_is_freed() {
        let (keep, kept) = channel();
        let (value, dropped_by) = reporting_of(Client::WithManyPages, 1, false, false);
        keep_until_freed(Arc::new(std::sync::Mutex::new(keep)), || drop(value));
        // The sender is in what is kept.
        assert_eq!(kept.recv(), Err::<(), _>(std::sync::mpsc::RecvError));
        assert_eq!(dropped_by.try_recv().unwrap().as_deref(), Some("nerite-free"));
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
