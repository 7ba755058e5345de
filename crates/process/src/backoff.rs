//! When may the next process of an instance be started, after others have failed?
//!
//! A start may fail, and a process may die before it was used. Each failure doubles the pause until the next start, so that a model that dies at each
//! start does not keep the machine busy. A process that was used, or lived for some time, is no failure: its death belongs to the request that it had.

use crate::limits::{GOOD_LIFE, RESTART_PAUSE, RESTART_PAUSE_MAX};

/// The failures since the last good process. Times are in ns of one clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backoff {
    /// The failures that count. Each of them after the first doubles the pause.
    failures: u32,
    /// Whether a process died early since the last good one. The first one causes no pause: somebody may have killed it.
    has_died_early: bool,
    /// The time of the last failure.
    at_ns: u64,
}

/// The life of a process that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) started_ns: u64,
    pub(crate) ended_ns: u64,
    /// Whether it was given a batch.
    pub(crate) is_used: bool,
}

impl Backoff {
    /// Notes that a start failed.
    pub(crate) fn start_failed(&mut self, at_ns: u64) {
        self.failures = self.failures.saturating_add(1);
        self.at_ns = at_ns;
    }

    /// Notes that a process has ended.
    pub(crate) fn ended(&mut self, life: Life) {
        if life.is_used || life.ended_ns.saturating_sub(life.started_ns) >= ns(GOOD_LIFE) {
            *self = Backoff::default();
        } else if std::mem::replace(&mut self.has_died_early, true) {
            self.start_failed(life.ended_ns);
        }
    }

    /// The pause in ns between the last failure and the next start.
    pub(crate) fn pause_ns(&self) -> u64 {
        let Some(doublings) = self.failures.checked_sub(1) else { return 0 };
        let pause = ns(RESTART_PAUSE).saturating_mul(1u64.checked_shl(doublings).unwrap_or(u64::MAX));
        pause.min(ns(RESTART_PAUSE_MAX))
    }

    /// How long the next start has to wait, in ns. 0: it may begin.
    pub(crate) fn wait_ns(&self, now_ns: u64) -> u64 {
        self.at_ns.saturating_add(self.pause_ns()).saturating_sub(now_ns)
    }

    /// The same after one more failure at this time.
    pub(crate) fn after_failure(mut self, at_ns: u64) -> Backoff {
        self.start_failed(at_ns);
        self
    }
}

fn ns(duration: std::time::Duration) -> u64 {
    duration.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happens, with the second at which it does.
    #[derive(Clone, Copy)]
    enum Event {
        /// A start fails.
        Fails(u64),
        /// A process that was started at the first second ends at the second one, unused.
        Dies(u64, u64),
        /// The same of a process that was given a batch.
        DiesUsed(u64, u64),
    }
    use Event::{Dies, DiesUsed, Fails};

    const S: u64 = 1_000_000_000;

    fn after(events: &[Event]) -> Backoff {
        let mut backoff = Backoff::default();
        for event in events {
            let life =
                |started: u64, ended: u64, is_used| Life { started_ns: started * S, ended_ns: ended * S, is_used };
            match *event {
                Fails(at) => backoff.start_failed(at * S),
                Dies(started, ended) => backoff.ended(life(started, ended, false)),
                DiesUsed(started, ended) => backoff.ended(life(started, ended, true)),
            }
        }
        backoff
    }

    #[track_caller]
    fn check(events: &[Event], pause_s: u64) {
        assert_eq!(after(events).pause_ns(), pause_s * S);
    }

    #[test]
    fn each_failure_doubles_the_pause_up_to_a_limit() {
        check(&[], 0);
        for (failures, pause_s) in
            [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 30), (7, 30), (64, 30), (65, 30), (1000, 30)]
        {
            check(&vec![Fails(5); failures], pause_s);
        }
    }

    #[test]
    fn the_first_early_death_is_free_and_others_count_as_failures() {
        check(&[Dies(0, 1)], 0);
        check(&[Dies(0, 1), Dies(1, 2)], 1);
        check(&[Dies(0, 1), Dies(1, 2), Dies(3, 4), Dies(6, 7)], 4);
        check(&[Dies(0, 1), Fails(2)], 1);
        check(&[Fails(1), Dies(2, 3)], 1);
        check(&[Fails(1), Dies(2, 3), Dies(4, 5)], 2);
    }

    #[test]
    fn a_good_process_resets_the_pause() {
        check(&[Fails(1), Fails(2), DiesUsed(3, 4)], 0);
        check(&[Dies(0, 1), DiesUsed(1, 2), Dies(2, 3)], 0);
        check(&[Fails(1), Fails(2), Dies(3, 13)], 0);
        check(&[Fails(1), Fails(2), Dies(3, 12)], 2);
        check(&[Fails(1), Fails(2), DiesUsed(3, 4), Fails(5)], 1);
    }

    #[test]
    fn the_next_start_waits_from_the_last_failure_on() {
        let failed = after(&[Fails(10), Fails(20)]);
        for (now, wait) in [(20, 2), (21, 1), (22, 0), (100, 0), (0, 22)] {
            assert_eq!(failed.wait_ns(now * S), wait * S, "at {now} s");
        }
        assert_eq!(failed.after_failure(30 * S), after(&[Fails(10), Fails(20), Fails(30)]));
        assert_eq!(Backoff::default().wait_ns(0), 0);
        assert_eq!(after(&[Fails(u64::MAX / S)]).wait_ns(u64::MAX), 0);
    }
}
