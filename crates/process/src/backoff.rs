//! When may the next process of an instance be started, after others have failed?
//!
//! A start may fail, and a process may die before it gets a request. Each such failure doubles the pause until the next start, so that a model that dies at
//! each start does not keep the machine busy. A process that has answered a request, or lived for some time, is not a failure. Clients can use such a
//! model, so the next process is started at once.
//!
//! A process may also die at its first request. The client that sent it may send more of them, and other clients wait for the next process. So the pause is
//! only as long as the start took: starts take at most half of the time. Requests wait meanwhile. If many processes in a row die in this way,
//! requests fail during the pauses. Otherwise all waiting requests would have to run before the model can serve other clients or be unloaded.

use crate::limits::{DEATHS_AT_REQUESTS_MAX, GOOD_LIFE, RESTART_PAUSE, RESTART_PAUSE_MAX};

/// The failures since the last good process. Times are in ns of one clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backoff {
    /// The failed starts and early deaths in a row, without the first early death. Each one after the first doubles the pause. A death at a request
    /// sets this to 0.
    failures: u32,
    /// Whether a process died early since the last good one. The first one causes no pause: somebody may have killed it.
    has_died_early: bool,
    /// The processes in a row that died at their first request.
    deaths_at_requests: u32,
    /// The pause after the last event.
    pause_ns: u64,
    /// The time of the last event that causes a pause.
    at_ns: u64,
}

/// The life of a process that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    /// How long the start took.
    pub(crate) start_took_ns: u64,
    /// When the start was done.
    pub(crate) started_ns: u64,
    pub(crate) ended_ns: u64,
    pub(crate) served: Served,
}

/// What a process did for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// It got none.
    Nothing,
    /// It got at least one, and has answered none.
    Unanswered,
    /// It has answered at least one.
    Answered,
}

impl Backoff {
    /// Notes that a start failed.
    pub(crate) fn start_failed(&mut self, at_ns: u64) {
        let doublings = self.failures;
        self.failures = self.failures.saturating_add(1);
        let pause = ns(RESTART_PAUSE).saturating_mul(1u64.checked_shl(doublings).unwrap_or(u64::MAX));
        (self.pause_ns, self.at_ns) = (pause.min(ns(RESTART_PAUSE_MAX)), at_ns);
    }

    /// Notes that a process has ended.
    pub(crate) fn ended(&mut self, life: Life) {
        let is_good = life.served == Served::Answered || life.ended_ns.saturating_sub(life.started_ns) >= ns(GOOD_LIFE);
        if is_good {
            *self = Backoff::default();
        } else if !std::mem::replace(&mut self.has_died_early, true) {
            // The first early death causes no pause.
        } else if life.served == Served::Unanswered {
            let pause_ns = life.start_took_ns.min(ns(RESTART_PAUSE_MAX));
            let deaths_at_requests = self.deaths_at_requests.saturating_add(1);
            *self = Backoff { failures: 0, has_died_early: true, deaths_at_requests, pause_ns, at_ns: life.ended_ns };
        } else {
            self.start_failed(life.ended_ns);
        }
    }

    /// The pause in ns between the last failure and the next start.
    pub(crate) fn pause_ns(&self) -> u64 {
        self.pause_ns
    }

    /// Whether requests fail during the pause. Otherwise they wait for its end.
    pub(crate) fn is_refusing(&self) -> bool {
        self.failures > 0 || self.deaths_at_requests > DEATHS_AT_REQUESTS_MAX
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

    /// An event, and the second at which it happens.
    #[derive(Clone, Copy)]
    enum Event {
        /// A start fails.
        Fails(u64),
        /// A process that was started at the first second ends at the second one, and got no request.
        Dies(u64, u64),
        /// The same of a process that got a request and has not answered it. Its start took the third number of seconds.
        DiesAtRequest(u64, u64, u64),
        /// The same of a process that has answered a request.
        DiesAfterAnswer(u64, u64),
    }
    use Event::{Dies, DiesAfterAnswer, DiesAtRequest, Fails};

    const S: u64 = 1_000_000_000;

    fn after(events: &[Event]) -> Backoff {
        let mut backoff = Backoff::default();
        for event in events {
            let life = |started: u64, ended: u64, took: u64, served| Life {
                start_took_ns: took * S,
                started_ns: started * S,
                ended_ns: ended * S,
                served,
            };
            match *event {
                Fails(at) => backoff.start_failed(at * S),
                Dies(started, ended) => backoff.ended(life(started, ended, 1, Served::Nothing)),
                DiesAtRequest(started, ended, took) => backoff.ended(life(started, ended, took, Served::Unanswered)),
                DiesAfterAnswer(started, ended) => backoff.ended(life(started, ended, 1, Served::Answered)),
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
    fn a_pause_after_deaths_at_requests_is_as_long_as_the_start_took() {
        check(&[DiesAtRequest(0, 1, 3)], 0);
        check(&[DiesAtRequest(0, 1, 3), DiesAtRequest(4, 5, 3)], 3);
        check(&[DiesAtRequest(0, 1, 3); 9], 3);
        check(&[DiesAtRequest(0, 1, 3), DiesAtRequest(4, 5, 300)], 30);
        check(&[Dies(0, 1), DiesAtRequest(4, 5, 2)], 2);
        // The process started, so the failed starts before it no longer count.
        check(&[Fails(1), Fails(2), Fails(3), Dies(4, 5), DiesAtRequest(6, 7, 0)], 0);
        check(&[Fails(1), Dies(4, 5), DiesAtRequest(6, 7, 2), Fails(8)], 1);
        for (events, is_refusing) in [
            (&[Fails(1)][..], true),
            (&[Dies(0, 1), Dies(1, 2)], true),
            (&[Dies(0, 1), DiesAtRequest(1, 2, 1)], false),
            (&[Fails(0), Dies(0, 1), DiesAtRequest(1, 2, 1)], false),
            (&[DiesAtRequest(1, 2, 1); 9], false),
            (&[DiesAtRequest(1, 2, 1); 10], true),
        ] {
            assert_eq!(after(events).is_refusing(), is_refusing);
        }
    }

    #[test]
    fn a_good_process_resets_the_pause() {
        check(&[Fails(1), Fails(2), DiesAfterAnswer(3, 4)], 0);
        check(&[Dies(0, 1), DiesAfterAnswer(1, 2), Dies(2, 3)], 0);
        check(&[Fails(1), Fails(2), Dies(3, 13)], 0);
        check(&[Fails(1), Fails(2), Dies(3, 12)], 2);
        check(&[Fails(1), Fails(2), DiesAfterAnswer(3, 4), Fails(5)], 1);
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
