//! How does the watchdog notice a poll that does not end?
//!
//! The watchdog's own thread looks at all slots ten times a second while front threads work. After five seconds without a poll it sleeps,
//! and the next poll of any front thread wakes it. So an idle server does nothing here. Polls of background tasks count as none. Such a task can
//! wait until the thread is awake ([`until_awake`]).

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use nerite_locks::Mutex;

use crate::late_log::{LATE_NS, Late, log_late};
use crate::slot::{now_ns, slots};

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// It sleeps after this many looks without a poll between them.
const IDLE_LOOKS_MAX: u32 = 50;

const _: () = assert!(LOOK_EVERY.as_nanos() <= LATE_NS as u128, "a late poll is noticed before it is twice as late");

static SLEEP: Sleep = Sleep::new();
static THREAD: OnceLock<Thread> = OnceLock::new();

/// Starts the watchdog's thread. Without it a late poll is logged only when it ends.
pub fn start() -> io::Result<()> {
    let spawned = thread::Builder::new().name("nerite-watchdog".into()).spawn(watch)?;
    // One per process. A second thread would report everything twice until it sleeps, and then is never woken.
    let _ = THREAD.set(spawned.thread().clone());
    Ok(())
}

/// A poll begins: the watchdog's thread must be awake.
pub(crate) fn wake() {
    if SLEEP.is_on() {
        wake_up();
    }
}

#[cold]
fn wake_up() {
    if SLEEP.end()
        && let Some(thread) = THREAD.get()
    {
        thread.unpark();
    }
}

/// Whether the watchdog's thread sleeps, because no front thread worked for five seconds. False if it was never started.
pub fn is_asleep() -> bool {
    SLEEP.is_on()
}

/// Waits until the watchdog's thread is awake. The next poll of a front thread wakes it, except one of a background task.
pub async fn until_awake() {
    poll_fn(|cx| SLEEP.poll_end(cx)).await;
}

/// Whether the watchdog's thread sleeps, and the background tasks that wait until it wakes up.
struct Sleep {
    is_on: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl Sleep {
    const fn new() -> Sleep {
        Sleep { is_on: AtomicBool::new(false), waiting: Mutex::new(Vec::new()) }
    }

    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    fn begin(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Ends the sleep and wakes the tasks that wait. Returns false if the sleep had ended already.
    fn end(&self) -> bool {
        let was_on = self.is_on.swap(false, Ordering::Relaxed);
        if was_on {
            let waiting = std::mem::take(&mut *self.waiting());
            waiting.into_iter().for_each(Waker::wake);
        }
        was_on
    }

    /// Ready if the thread is awake. Otherwise the task is woken when it is.
    fn poll_end(&self, cx: &Context<'_>) -> Poll<()> {
        // `end` takes this list after it has changed the state. So either `end` finds the task in the list, or the task sees the new state.
        let mut waiting = self.waiting();
        if !self.is_on() {
            return Poll::Ready(());
        }
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[expect(clippy::disallowed_methods, reason = "the thread is the watchdog's own")]
fn watch() {
    let mut history = History::default();
    loop {
        thread::sleep(LOOK_EVERY);
        match history.check(&states(), now_ns()) {
            Next::LookAgain(late) => {
                SLEEP.end();
                late.into_iter().for_each(report);
            }
            // One more look follows before it sleeps. It finds a poll that began before this store was visible to its thread.
            Next::AnnounceSleep => SLEEP.begin(),
            Next::Sleep => {
                while SLEEP.is_on() {
                    thread::park();
                }
                history.idle_looks = 0;
            }
        }
    }
}

/// The state of each slot now.
fn states() -> Vec<SlotState> {
    slots().iter().map(|slot| SlotState { since_ns: slot.since_ns(), polls: slot.polls() }).collect()
}

fn report(LateSlot { slot, wall_ns }: LateSlot) {
    let slot = slots().get(slot).cloned();
    if let Some((front_end, activity)) = slot.map(|slot| slot.activity()) {
        log_late(Late::StillRuns { wall_ns }, front_end, &activity, now_ns());
    }
}

/// The state of one slot.
#[derive(Clone, Copy, Debug)]
struct SlotState {
    since_ns: Option<u64>,
    polls: u64,
}

/// A slot, by its number, whose poll is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LateSlot {
    slot: usize,
    wall_ns: u64,
}

/// The watchdog's action after a look.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Next {
    /// Report these polls, and look again later.
    LookAgain(Vec<LateSlot>),
    /// Ask front threads for a wake-up, and look once more.
    AnnounceSleep,
    /// Sleep until a front thread wakes it.
    Sleep,
}

/// The results of earlier looks.
#[derive(Debug, Default)]
struct History {
    polls: u64,
    idle_looks: u32,
    /// By slot, when the poll that was reported last began.
    reported: HashMap<usize, u64>,
}

impl History {
    fn check(&mut self, slots: &[SlotState], now_ns: u64) -> Next {
        let polls = slots.iter().map(|slot| slot.polls).sum();
        let idle = polls == self.polls && slots.iter().all(|slot| slot.since_ns.is_none());
        self.polls = polls;
        if idle {
            self.idle_looks += 1;
            return match self.idle_looks {
                ..IDLE_LOOKS_MAX => Next::LookAgain(Vec::new()),
                IDLE_LOOKS_MAX => Next::AnnounceSleep,
                _ => Next::Sleep,
            };
        }
        self.idle_looks = 0;
        let mut late = Vec::new();
        for (slot, state) in slots.iter().enumerate() {
            let Some(since_ns) = state.since_ns else { continue };
            let wall_ns = now_ns.saturating_sub(since_ns);
            if wall_ns > LATE_NS && self.reported.insert(slot, since_ns) != Some(since_ns) {
                late.push(LateSlot { slot, wall_ns });
            }
        }
        Next::LookAgain(late)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    use std::task::Wake;

    use super::*;

    const MS: u64 = 1_000_000;

    struct CountedWakes(AtomicU32);

    impl Wake for CountedWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_end_of_the_sleep_wakes_each_task_that_waits_once() {
        let counted = Arc::new(CountedWakes(AtomicU32::new(0)));
        let waker = Waker::from(Arc::clone(&counted));
        let (cx, times, sleep) = (Context::from_waker(&waker), || counted.0.load(Ordering::Relaxed), Sleep::new());
        assert!(sleep.poll_end(&cx).is_ready() && !sleep.end(), "it is awake at first");
        sleep.begin();
        assert!(sleep.poll_end(&cx).is_pending() && sleep.poll_end(&cx).is_pending());
        assert!(sleep.end() && !sleep.end());
        assert_eq!(times(), 1);
        assert!(sleep.poll_end(&cx).is_ready());
        sleep.begin();
        assert!(sleep.end());
        assert_eq!(times(), 1, "nobody waits any more");
    }

    fn idle(polls: u64) -> SlotState {
        SlotState { since_ns: None, polls }
    }

    fn busy(since_ms: u64) -> SlotState {
        SlotState { since_ns: Some(since_ms * MS), polls: 0 }
    }

    #[test]
    fn a_late_thread_is_reported_once_for_each_poll() {
        let mut history = History::default();
        let mut check = |slots: &[SlotState], now_ms: u64| match history.check(slots, now_ms * MS) {
            Next::LookAgain(late) => late.iter().map(|late| (late.slot, late.wall_ns / MS)).collect::<Vec<_>>(),
            next => panic!("{next:?}"),
        };
        assert_eq!(check(&[busy(10), idle(1)], 100), []);
        assert_eq!(check(&[busy(10), idle(1)], 200), [(0, 190)]);
        assert_eq!(check(&[busy(10), busy(150)], 300), [(1, 150)]);
        assert_eq!(check(&[busy(310), busy(150)], 400), []);
        assert_eq!(check(&[busy(310), busy(150)], 500), [(0, 190)]);
    }

    #[test]
    fn it_sleeps_after_many_idle_looks_and_looks_once_more_before() {
        let mut history = History::default();
        assert_eq!(history.check(&[idle(7)], 0), Next::LookAgain(Vec::new()));
        for _ in 1..IDLE_LOOKS_MAX {
            assert_eq!(history.check(&[idle(7)], 0), Next::LookAgain(Vec::new()));
        }
        assert_eq!(history.check(&[idle(7)], 0), Next::AnnounceSleep);
        assert_eq!(history.check(&[idle(7)], 0), Next::Sleep);
        history.idle_looks = IDLE_LOOKS_MAX;
        assert_eq!(history.check(&[idle(8)], 0), Next::LookAgain(Vec::new()), "a short poll ran between two looks");
        history.idle_looks = IDLE_LOOKS_MAX;
        assert_eq!(history.check(&[busy(1)], 0), Next::LookAgain(Vec::new()), "a poll runs");
    }
}
