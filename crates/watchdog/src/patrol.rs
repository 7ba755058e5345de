//! How is a thread seen that does not come back at all?
//!
//! A thread of the watchdog's own looks at all slots ten times a second while front threads work. When none has worked for a while it sleeps,
//! and the next poll of any front thread wakes it: a server without requests does nothing here.

use std::collections::HashMap;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::line::{LATE_NS, Late, tell};
use crate::slot::{now_ns, slots};

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Looks without any work between them, after which it sleeps.
const IDLE_LOOKS_MAX: u32 = 50;

const _: () = assert!(LOOK_EVERY.as_nanos() <= LATE_NS as u128, "what is late is seen before it is twice as late");

static ASLEEP: AtomicBool = AtomicBool::new(false);
static THREAD: OnceLock<Thread> = OnceLock::new();

/// Starts the watchdog's thread. Without it only polls that have ended are told.
pub fn start() -> io::Result<()> {
    let spawned = thread::Builder::new().name("nerite-watchdog".into()).spawn(patrol)?;
    // There is one per process; a second would only say everything twice as often, and is never woken again.
    let _ = THREAD.set(spawned.thread().clone());
    Ok(())
}

/// A poll begins: somebody may have to look at it.
pub(crate) fn wake() {
    if ASLEEP.load(Ordering::Relaxed) {
        wake_up();
    }
}

#[cold]
fn wake_up() {
    if ASLEEP.swap(false, Ordering::Relaxed)
        && let Some(thread) = THREAD.get()
    {
        thread.unpark();
    }
}

#[expect(clippy::disallowed_methods, reason = "the thread is the watchdog's own")]
fn patrol() {
    let mut rounds = Rounds::default();
    loop {
        thread::sleep(LOOK_EVERY);
        match rounds.look(&seen(), now_ns()) {
            Next::LookAgain(late) => {
                ASLEEP.store(false, Ordering::Relaxed);
                late.into_iter().for_each(report);
            }
            // One more look follows before it sleeps: a poll that began meanwhile and did not see this is seen then.
            Next::SayGoodNight => ASLEEP.store(true, Ordering::Relaxed),
            Next::Sleep => {
                while ASLEEP.load(Ordering::Relaxed) {
                    thread::park();
                }
                rounds.idle_looks = 0;
            }
        }
    }
}

/// What each slot shows now.
fn seen() -> Vec<Seen> {
    slots().iter().map(|slot| Seen { since_ns: slot.since_ns(), polls: slot.polls() }).collect()
}

fn report(LateSlot { slot, wall_ns }: LateSlot) {
    let slot = slots().get(slot).cloned();
    if let Some((front_end, what)) = slot.map(|slot| slot.seen()) {
        tell(Late::StillAway { wall_ns }, front_end, &what, now_ns());
    }
}

/// What one slot shows.
#[derive(Clone, Copy, Debug)]
struct Seen {
    since_ns: Option<u64>,
    polls: u64,
}

/// A slot, by its number, whose thread is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LateSlot {
    slot: usize,
    wall_ns: u64,
}

/// What the watchdog does after a look.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Next {
    /// Reports these, and looks again in a while.
    LookAgain(Vec<LateSlot>),
    /// Asks to be woken, and looks once more.
    SayGoodNight,
    /// Sleeps until it is woken.
    Sleep,
}

/// What was seen so far.
#[derive(Debug, Default)]
struct Rounds {
    polls: u64,
    idle_looks: u32,
    /// The beginning of the poll that was reported last, by slot.
    reported: HashMap<usize, u64>,
}

impl Rounds {
    fn look(&mut self, slots: &[Seen], now_ns: u64) -> Next {
        let polls = slots.iter().map(|seen| seen.polls).sum();
        let idle = polls == self.polls && slots.iter().all(|seen| seen.since_ns.is_none());
        self.polls = polls;
        if idle {
            self.idle_looks += 1;
            return match self.idle_looks {
                ..IDLE_LOOKS_MAX => Next::LookAgain(Vec::new()),
                IDLE_LOOKS_MAX => Next::SayGoodNight,
                _ => Next::Sleep,
            };
        }
        self.idle_looks = 0;
        let mut late = Vec::new();
        for (slot, seen) in slots.iter().enumerate() {
            let Some(since_ns) = seen.since_ns else { continue };
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
    use super::*;

    const MS: u64 = 1_000_000;

    fn idle(polls: u64) -> Seen {
        Seen { since_ns: None, polls }
    }

    fn busy(since_ms: u64) -> Seen {
        Seen { since_ns: Some(since_ms * MS), polls: 0 }
    }

    #[test]
    fn a_late_thread_is_reported_once_for_each_poll() {
        let mut rounds = Rounds::default();
        let mut look = |slots: &[Seen], now_ms: u64| match rounds.look(slots, now_ms * MS) {
            Next::LookAgain(late) => late.iter().map(|late| (late.slot, late.wall_ns / MS)).collect::<Vec<_>>(),
            next => panic!("{next:?}"),
        };
        assert_eq!(look(&[busy(10), idle(1)], 100), []);
        assert_eq!(look(&[busy(10), idle(1)], 200), [(0, 190)]);
        assert_eq!(look(&[busy(10), busy(150)], 300), [(1, 150)]);
        assert_eq!(look(&[busy(310), busy(150)], 400), []);
        assert_eq!(look(&[busy(310), busy(150)], 500), [(0, 190)]);
    }

    #[test]
    fn it_sleeps_when_nothing_was_done_for_a_while_and_was_asked_to_look_once_more() {
        let mut rounds = Rounds::default();
        assert_eq!(rounds.look(&[idle(7)], 0), Next::LookAgain(Vec::new()));
        for _ in 1..IDLE_LOOKS_MAX {
            assert_eq!(rounds.look(&[idle(7)], 0), Next::LookAgain(Vec::new()));
        }
        assert_eq!(rounds.look(&[idle(7)], 0), Next::SayGoodNight);
        assert_eq!(rounds.look(&[idle(7)], 0), Next::Sleep);
        rounds.idle_looks = IDLE_LOOKS_MAX;
        assert_eq!(rounds.look(&[idle(8)], 0), Next::LookAgain(Vec::new()), "somebody was quick meanwhile");
        rounds.idle_looks = IDLE_LOOKS_MAX;
        assert_eq!(rounds.look(&[busy(1)], 0), Next::LookAgain(Vec::new()), "somebody works");
    }
}
