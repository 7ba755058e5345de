//! What is known of one front thread?

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use nerite_locks::Mutex;
use rustix::time::{ClockId, clock_gettime};

use crate::FrontEnd;
use crate::histogram::{Counts, Histogram};
use crate::late_log::{LATE_NS, Late, log_late};
use crate::name::{Activity, ActivityCell, Name};
use crate::stall::STALL_NS;
use crate::thread_time::{thread_cpu_ns, thread_ready_ns};

/// The thread's processor time is read again after this much time in polls.
const CLOCK_EVERY_NS: u64 = 1_000_000;
/// How long the thread was ready without a processor is read again after this much time, together with the processor time: it takes some microseconds.
const READY_EVERY_NS: u64 = 10_000_000;

/// One front thread, as the watchdog and the metrics see it. Only the thread itself writes it.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// When the current poll began, by [`now_ns`]. 0 between polls.
    since_ns: AtomicU64,
    front_end: AtomicU8,
    activity: ActivityCell,
    wall: Histogram,
    cpu: Histogram,
    /// How many polls have ended, without those of background tasks.
    polls: AtomicU64,
}

/// How long the polls of all front threads took so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Busy {
    /// Wall time of each poll.
    pub wall: Counts,
    /// Processor time of each poll, exact to about two milliseconds. Other programs on the machine lengthen the wall time of a poll, not
    /// this. But a poll that waits (for a lock, for another thread) uses no processor time either, so both are needed.
    pub cpu: Counts,
}

/// All slots. Front threads are few and live as long as the process, so none is ever removed.
static SLOTS: Mutex<Vec<Arc<Slot>>> = Mutex::new(Vec::new());

thread_local! {
    /// When the current poll of this thread began. 0 between polls, and on threads that are not front threads.
    static SINCE_NS: Cell<u64> = const { Cell::new(0) };
    /// Made by the first poll of a thread, because its slot is never removed.
    static THREAD: ThreadState = ThreadState::new();
}

/// The state of a front thread that only this thread uses.
struct ThreadState {
    slot: Arc<Slot>,
    /// Whether the activity of the current poll is known.
    is_described: Cell<bool>,
    /// Time in polls since the processor time was last read.
    unread_ns: Cell<u64>,
    /// The processor time at the last read.
    cpu_ns: Cell<u64>,
    /// How long the thread was ready without a processor, at the last read, and when that was.
    ready_ns: Cell<u64>,
    ready_read_at_ns: Cell<u64>,
}

impl ThreadState {
    fn new() -> ThreadState {
        let slot = Arc::<Slot>::default();
        slots().push(Arc::clone(&slot));
        let (cpu_ns, ready_ns) = (Cell::new(thread_cpu_ns()), Cell::new(thread_ready_ns()));
        let (is_described, unread_ns, ready_read_at_ns) = (Cell::default(), Cell::default(), Cell::new(now_ns()));
        ThreadState { slot, is_described, unread_ns, cpu_ns, ready_ns, ready_read_at_ns }
    }

    /// Processor time of a poll that has just ended after `wall_ns`.
    ///
    /// Reading that clock is a system call, which is too expensive for every poll. So the last read may be a millisecond of work ago, and
    /// that work is counted to this poll as well. A poll shorter than a millisecond counts as if it had used the processor all the time.
    fn cpu_of(&self, wall_ns: u64, now_ns: u64) -> u64 {
        let unread_ns = self.unread_ns.get() + wall_ns;
        if unread_ns < CLOCK_EVERY_NS {
            self.unread_ns.set(unread_ns);
            return wall_ns;
        }
        let before = self.cpu_ns.replace(thread_cpu_ns());
        self.unread_ns.set(0);
        if wall_ns < STALL_NS && now_ns.saturating_sub(self.ready_read_at_ns.get()) >= READY_EVERY_NS {
            self.take_ready(now_ns);
        }
        self.cpu_ns.get().saturating_sub(before).min(wall_ns)
    }

    /// How long the thread was ready without a processor since the last read.
    fn take_ready(&self, now_ns: u64) -> u64 {
        self.ready_read_at_ns.set(now_ns);
        let before_ns = self.ready_ns.replace(thread_ready_ns());
        self.ready_ns.get().saturating_sub(before_ns)
    }

    /// Notes what runs from now on. If the poll is late already, the earlier activity caused it and stays.
    fn note(&self, since_ns: u64, is_known: impl FnOnce(&ActivityCell) -> bool, change: impl FnOnce(&ActivityCell)) {
        // If the activity is the same, nothing changes, and the clock is not read.
        if is_known(&self.slot.activity) {
            return;
        }
        if self.is_described.replace(true) && now_ns().saturating_sub(since_ns) > LATE_NS {
            return;
        }
        change(&self.slot.activity);
    }
}

/// Begins a poll on this thread. False if it is within another one, which is timed already.
pub(crate) fn begin_poll(front_end: FrontEnd, now_ns: u64) -> bool {
    if SINCE_NS.get() != 0 {
        return false;
    }
    SINCE_NS.set(now_ns);
    THREAD.with(|thread| {
        thread.slot.front_end.store(front_end as u8, Ordering::Relaxed);
        thread.slot.since_ns.store(now_ns, Ordering::Release);
    });
    true
}

/// Ends the poll of this thread. `charge` gets the time at its end, how long it took, and how much of that it did not wait, at most, in ns: it used the
/// processor, or other threads did.
///
/// A poll of a background task (`is_background`) does not keep the watchdog's thread awake.
pub(crate) fn end_poll(is_background: bool, charge: impl FnOnce(u64, u64, u64)) {
    // A thread that is ending has no thread-local state any more. No connection waits for it.
    let _ = THREAD.try_with(|thread| {
        let (now_ns, slot) = (now_ns(), &thread.slot);
        let wall_ns = now_ns.saturating_sub(SINCE_NS.replace(0));
        slot.since_ns.store(0, Ordering::Release);
        let cpu_ns = thread.cpu_of(wall_ns, now_ns);
        let ready_ns = if wall_ns >= STALL_NS { thread.take_ready(now_ns) } else { 0 };
        charge(now_ns, wall_ns, cpu_ns + ready_ns);
        slot.wall.note(wall_ns);
        slot.cpu.note(cpu_ns);
        if !is_background {
            // Only this thread writes it.
            slot.polls.store(slot.polls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        if wall_ns > LATE_NS {
            let (front_end, activity) = slot.activity();
            log_late(Late::Ended { wall_ns, cpu_ns }, front_end, &activity, now_ns);
        }
        if thread.is_described.take() {
            slot.activity.clear();
        }
    });
}

/// How much of work that has just ended in a poll of this thread, after `spent_ns`, the thread waited, at least: its times since the last read may be those of
/// other work.
pub(crate) fn waited_of(spent_ns: u64) -> u64 {
    let used_ns = THREAD.try_with(|thread| {
        let cpu_ns = thread_cpu_ns().saturating_sub(thread.cpu_ns.get());
        cpu_ns + thread_ready_ns().saturating_sub(thread.ready_ns.get())
    });
    spent_ns.saturating_sub(used_ns.unwrap_or(spent_ns))
}

impl Slot {
    /// When the current poll began. `None` between polls.
    pub(crate) fn since_ns(&self) -> Option<u64> {
        Some(self.since_ns.load(Ordering::Acquire)).filter(|since_ns| *since_ns != 0)
    }

    /// What the thread runs. It may have changed by the time this returns.
    pub(crate) fn activity(&self) -> (FrontEnd, Activity) {
        let front_end = FrontEnd::ALL.get(usize::from(self.front_end.load(Ordering::Relaxed)));
        (front_end.copied().unwrap_or_default(), self.activity.get())
    }

    /// How many polls have ended, without those of background tasks.
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }
}

/// Notes that this thread now answers a call of that group. Does nothing outside of a watched poll.
pub fn doing(call: &Name) {
    note(|_| false, |activity| activity.call(call));
}

/// Notes that this thread now runs that model. Does nothing outside of a watched poll.
pub fn running(model: &Name) {
    note(|activity| activity.is_model(model), |activity| activity.model(model));
}

fn note(is_known: impl FnOnce(&ActivityCell) -> bool, change: impl FnOnce(&ActivityCell)) {
    let since_ns = SINCE_NS.get();
    if since_ns != 0 {
        THREAD.with(|thread| thread.note(since_ns, is_known, change));
    }
}

/// How long this thread has been busy with its current poll. 0 outside of a watched one.
pub fn busy_for() -> Duration {
    match SINCE_NS.get() {
        0 => Duration::ZERO,
        since_ns => Duration::from_nanos(now_ns().saturating_sub(since_ns)),
    }
}

/// How long the polls of all front threads took so far, added up.
pub fn busy() -> Busy {
    let mut busy = Busy::default();
    for slot in slots().iter() {
        slot.wall.add_to(&mut busy.wall);
        slot.cpu.add_to(&mut busy.cpu);
    }
    busy
}

pub(crate) fn slots() -> MutexGuard<'static, Vec<Arc<Slot>>> {
    SLOTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The monotonic clock, in nanoseconds. Never 0, and never goes back.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64).max(1)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::thread;

    use super::*;
    use crate::poll_timer::PollTimer;
    use crate::{background, watched};

    /// Polls a task once, on a thread of its own. Returns how many polls took more than 100 ms of wall time, how many of processor time,
    /// and how many there were.
    #[expect(clippy::disallowed_methods, reason = "a test may panic")]
    fn late_polls(task: impl FnOnce() + Send + 'static) -> (u64, u64, u64) {
        let polled = thread::spawn(move || {
            let mut future = pin!(watched(FrontEnd::Http, async { task() }));
            assert_eq!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()));
            THREAD.with(|thread| {
                let (mut wall, mut cpu) = (Counts::default(), Counts::default());
                thread.slot.wall.add_to(&mut wall);
                thread.slot.cpu.add_to(&mut cpu);
                assert_eq!(thread.slot.since_ns(), None);
                assert_eq!(thread.slot.activity().1, Activity::default(), "the activity ends with its poll");
                let late = |counts: &Counts| counts.buckets[7..].iter().sum();
                (late(&wall), late(&cpu), wall.count())
            })
        });
        polled.join().expect("the thread only measured")
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the task of the test takes long")]
    #[ignore = "alone: asserts an upper bound on processor time"]
    fn a_poll_that_waits_is_long_and_uses_no_processor_time() {
        assert_eq!(late_polls(|| thread::sleep(Duration::from_millis(120))), (1, 0, 1));
    }

    #[test]
    #[ignore = "alone: compares elapsed and processor time"]
    fn a_poll_that_computes_is_long_both_ways() {
        let compute = || {
            let until = thread_cpu_ns() + 120_000_000;
            while thread_cpu_ns() < until {}
        };
        assert_eq!(late_polls(compute), (1, 1, 1));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test may panic")]
    fn a_thread_without_polls_gets_no_slot() {
        let (sender, receiver) = std::sync::mpsc::channel();
        // A slot cannot be made while this is locked.
        let _locked = slots();
        thread::spawn(move || {
            running(&Name::new("a"));
            sender.send(busy_for())
        });
        assert_eq!(receiver.recv_timeout(Duration::from_mins(1)), Ok(Duration::ZERO));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test may panic")]
    fn polls_of_background_tasks_are_timed_and_do_not_count_as_work() {
        let polled = thread::spawn(|| {
            let cx = &mut Context::from_waker(Waker::noop());
            for _ in 0..3 {
                assert_eq!(pin!(background(async {})).poll(cx), Poll::Ready(()));
            }
            assert_eq!(pin!(watched(FrontEnd::Http, async {})).poll(cx), Poll::Ready(()));
            THREAD.with(|thread| {
                let mut wall = Counts::default();
                thread.slot.wall.add_to(&mut wall);
                (wall.count(), thread.slot.polls())
            })
        });
        assert_eq!(polled.join().expect("the thread only polled"), (4, 1));
    }

    fn activity(call: &str, model: Option<&str>) -> Activity {
        Activity { call: Some(call.into()), model: model.map(Into::into) }
    }

    #[test]
    fn the_activity_is_visible_to_other_threads_and_a_nested_poll_is_not_counted() {
        let (_, _, polls) = late_polls(|| {
            let (inference, health, model) = (Name::new("inference"), Name::new("health"), Name::new("a_1"));
            doing(&inference);
            running(&model);
            drop(PollTimer::begin(FrontEnd::Grpc, now_ns(), None));
            THREAD.with(|thread| {
                assert!(thread.slot.since_ns().is_some());
                assert_eq!(thread.slot.activity(), (FrontEnd::Http, activity("inference", Some("a_1"))));
            });
            doing(&health);
            THREAD.with(|thread| assert_eq!(thread.slot.activity().1, activity("health", None)));
        });
        assert_eq!(polls, 1);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the task of the test takes long")]
    fn the_activity_that_made_a_poll_late_stays() {
        late_polls(|| {
            let (inference, health) = (Name::new("inference"), Name::new("health"));
            doing(&inference);
            thread::sleep(Duration::from_millis(120));
            doing(&health);
            THREAD.with(|thread| assert_eq!(thread.slot.activity().1, activity("inference", None)));
        });
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the task of the test takes long")]
    fn the_length_of_the_current_poll_is_known() {
        let wait = Duration::from_millis(3);
        late_polls(move || {
            assert!(busy_for() < Duration::from_mins(1));
            thread::sleep(wait);
            assert!(busy_for() >= wait);
        });
    }

    #[test]
    fn outside_of_polls_nothing_is_noted() {
        assert_eq!(busy_for(), Duration::ZERO);
        doing(&Name::new("inference"));
        running(&Name::new("a_1"));
        THREAD.with(|thread| assert_eq!(thread.slot.activity().1, Activity::default()));
    }
}
