//! What is known of one front thread?

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::FrontEnd;
use crate::histogram::{Counts, Histogram};
use crate::line::{LATE_NS, Late, tell};
use crate::name::{Name, Said, What};

/// The thread's processor time is read when it was busy for so long since it was last read.
const CLOCK_EVERY_NS: u64 = 1_000_000;

/// One front thread, as the watchdog and the metrics see it. Written by its thread alone.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// When the poll began that runs now, in ns of [`now_ns`]; 0 between polls.
    since_ns: AtomicU64,
    front_end: AtomicU8,
    said: Said,
    wall: Histogram,
    cpu: Histogram,
}

/// What all front threads were busy with so far, poll by poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Busy {
    /// From the beginning of a poll to its end.
    pub wall: Counts,
    /// Processor time of the thread in that time, to within about two milliseconds. A machine that is busy with something else makes
    /// polls long, but not this. A thread that waits (for a lock, for another thread) uses none either, so both are needed.
    pub cpu: Counts,
}

/// All slots. Front threads are few and live as long as the process, so none is ever taken out.
static SLOTS: Mutex<Vec<Arc<Slot>>> = Mutex::new(Vec::new());

thread_local! {
    static OWN: Own = Own::new();
}

/// A thread's own view of its slot.
struct Own {
    slot: Arc<Slot>,
    /// When the poll began that runs now; 0 between polls.
    since_ns: Cell<u64>,
    /// Whether anybody said in this poll what runs.
    told: Cell<bool>,
    /// Time in polls since the processor time was read.
    unread_ns: Cell<u64>,
    /// The processor time that was read.
    cpu_ns: Cell<u64>,
}

impl Own {
    fn new() -> Own {
        let slot = Arc::<Slot>::default();
        slots().push(Arc::clone(&slot));
        let cpu_ns = Cell::new(thread_cpu_ns());
        Own { slot, since_ns: Cell::default(), told: Cell::default(), unread_ns: Cell::default(), cpu_ns }
    }

    /// Processor time of a poll that took so long and has just ended.
    ///
    /// Reading that clock is a system call, which every poll cannot afford. So what was read last may be a millisecond of work old, and the
    /// poll is charged with that as well. A poll shorter than that has used no more than it took.
    fn cpu_of(&self, wall_ns: u64) -> u64 {
        let unread_ns = self.unread_ns.get() + wall_ns;
        if unread_ns < CLOCK_EVERY_NS {
            self.unread_ns.set(unread_ns);
            return wall_ns;
        }
        let before = self.cpu_ns.replace(thread_cpu_ns());
        self.unread_ns.set(0);
        self.cpu_ns.get().saturating_sub(before).min(wall_ns)
    }

    /// Notes what runs from now on. A poll that is late already is so because of what was noted before, which stays.
    fn say(&self, change: impl FnOnce(&Said)) {
        let since_ns = self.since_ns.get();
        if since_ns == 0 || self.told.replace(true) && now_ns().saturating_sub(since_ns) > LATE_NS {
            return;
        }
        change(&self.slot.said);
    }
}

/// A poll begins on this thread. False for one within another, which is timed already.
pub(crate) fn begin_poll(front_end: FrontEnd, now_ns: u64) -> bool {
    OWN.with(|own| {
        if own.since_ns.get() != 0 {
            return false;
        }
        own.since_ns.set(now_ns);
        own.slot.front_end.store(front_end as u8, Ordering::Relaxed);
        own.slot.since_ns.store(now_ns, Ordering::Release);
        true
    })
}

/// The poll of this thread has ended. `charge` is told when, and how long it took.
pub(crate) fn end_poll(charge: impl FnOnce(u64, u64)) {
    // A thread that ends has no slot any more, and nobody waits for it.
    let _ = OWN.try_with(|own| {
        let (now_ns, slot) = (now_ns(), &own.slot);
        let wall_ns = now_ns.saturating_sub(own.since_ns.replace(0));
        slot.since_ns.store(0, Ordering::Release);
        let cpu_ns = own.cpu_of(wall_ns);
        charge(now_ns, wall_ns);
        slot.wall.note(wall_ns);
        slot.cpu.note(cpu_ns);
        if wall_ns > LATE_NS {
            let (front_end, what) = slot.seen();
            tell(Late::CameBack { wall_ns, cpu_ns }, front_end, &what, now_ns);
        }
        if own.told.take() {
            slot.said.clear();
        }
    });
}

impl Slot {
    /// When the poll began that runs now, if one does.
    pub(crate) fn since_ns(&self) -> Option<u64> {
        Some(self.since_ns.load(Ordering::Acquire)).filter(|since_ns| *since_ns != 0)
    }

    /// What the thread runs, perhaps a moment later than it was asked for.
    pub(crate) fn seen(&self) -> (FrontEnd, What) {
        let front_end = FrontEnd::ALL.get(usize::from(self.front_end.load(Ordering::Relaxed)));
        (front_end.copied().unwrap_or_default(), self.said.what())
    }

    /// Polls that have ended.
    pub(crate) fn polls(&self) -> u64 {
        let mut counts = Counts::default();
        self.wall.add_to(&mut counts);
        counts.count()
    }
}

/// Notes that this thread answers a call of that group from now on. Nothing outside of a watched poll.
pub fn doing(call: &Name) {
    OWN.with(|own| own.say(|said| said.call(call)));
}

/// Notes that this thread runs that model from now on. Nothing outside of a watched poll.
pub fn running(model: &Name) {
    OWN.with(|own| own.say(|said| said.model(model)));
}

/// How long this thread is busy with the poll that runs now: 0 outside of a watched one.
pub fn busy_for() -> Duration {
    OWN.with(|own| match own.since_ns.get() {
        0 => Duration::ZERO,
        since_ns => Duration::from_nanos(now_ns().saturating_sub(since_ns)),
    })
}

/// What all front threads were busy with so far.
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

/// Nanoseconds since some moment before the process began. Never 0, never going back.
pub fn now_ns() -> u64 {
    read_ns(ClockId::Monotonic).max(1)
}

fn thread_cpu_ns() -> u64 {
    read_ns(ClockId::ThreadCPUTime)
}

fn read_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::thread;

    use super::*;
    use crate::turn::Turn;
    use crate::watched;

    /// Polls a task once, on a thread of its own, and tells what that thread's slot counted beyond 100 ms, by the clock and in processor time,
    /// and in all.
    #[expect(clippy::disallowed_methods, reason = "a test may panic")]
    fn late_polls(task: impl FnOnce() + Send + 'static) -> (u64, u64, u64) {
        let polled = thread::spawn(move || {
            let mut future = pin!(watched(FrontEnd::Http, async { task() }));
            assert_eq!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()));
            OWN.with(|own| {
                let (mut wall, mut cpu) = (Counts::default(), Counts::default());
                own.slot.wall.add_to(&mut wall);
                own.slot.cpu.add_to(&mut cpu);
                assert_eq!(own.slot.since_ns(), None);
                assert_eq!(own.slot.seen().1, What::default(), "what ran is forgotten with its poll");
                let late = |counts: &Counts| counts.buckets[7..].iter().sum();
                (late(&wall), late(&cpu), wall.count())
            })
        });
        polled.join().expect("the thread only measured")
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the task of the test takes long")]
    fn a_poll_that_waits_is_long_and_uses_no_processor_time() {
        assert_eq!(late_polls(|| thread::sleep(Duration::from_millis(120))), (1, 0, 1));
    }

    #[test]
    fn a_poll_that_computes_is_long_both_ways() {
        let compute = || {
            let until = thread_cpu_ns() + 120_000_000;
            while thread_cpu_ns() < until {}
        };
        assert_eq!(late_polls(compute), (1, 1, 1));
    }

    fn what(call: &str, model: Option<&str>) -> What {
        What { call: Some(call.into()), model: model.map(Into::into) }
    }

    #[test]
    fn what_runs_is_seen_from_outside_and_a_poll_within_a_poll_is_not_counted() {
        let (_, _, polls) = late_polls(|| {
            let (inference, health, model) = (Name::new("inference"), Name::new("health"), Name::new("a_1"));
            doing(&inference);
            running(&model);
            drop(Turn::begin(FrontEnd::Grpc, now_ns(), None));
            OWN.with(|own| {
                assert!(own.slot.since_ns().is_some());
                assert_eq!(own.slot.seen(), (FrontEnd::Http, what("inference", Some("a_1"))));
            });
            doing(&health);
            OWN.with(|own| assert_eq!(own.slot.seen().1, what("health", None)));
        });
        assert_eq!(polls, 1);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the task of the test takes long")]
    fn what_made_a_poll_late_keeps_its_name() {
        late_polls(|| {
            let (inference, health) = (Name::new("inference"), Name::new("health"));
            doing(&inference);
            thread::sleep(Duration::from_millis(120));
            doing(&health);
            OWN.with(|own| assert_eq!(own.slot.seen().1, what("inference", None)));
        });
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the task of the test takes long")]
    fn a_poll_knows_how_long_it_lasts() {
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
        OWN.with(|own| assert_eq!(own.slot.seen().1, What::default()));
    }
}
