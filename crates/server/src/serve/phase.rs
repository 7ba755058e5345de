//! Which phase of its end is a server in, and which signal moves it on?
//!
//! ```text
//!            SIGUSR1, or SIGTERM               its time is over, or SIGTERM again              SIGTERM again
//!   Serving ─────────────────────► Draining ─────────────────────────────────────► Stopping ───────────────► Exiting
//!      └────────────────────── SIGTERM where --drain-seconds is 0 ────────────────────┘
//! ```

use std::time::{Duration, Instant};

/// Signals within this time after one count as the same: `timeout` and terminals signal the process and then its group.
const SAME_SIGNAL_MS_MAX: u64 = 1000;

/// What a signal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signalled {
    /// To drain until a signal ends that.
    Drain,
    /// To end.
    End,
}

/// A phase. Phases only advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The server is ready.
    Serving,
    /// The server serves everything, and says that it is not ready.
    Draining {
        /// When that began.
        begun: Instant,
        /// When a signal to end came. `None` if there was only one to drain.
        end_signalled: Option<Instant>,
    },
    /// The server completes the inferences under way.
    Stopping {
        /// When the last signal to end came that counted.
        end_signalled: Instant,
    },
    /// The process ends at once.
    Exiting,
}

impl Phase {
    /// The phase after a signal. `drain` is how long the server drains before it stops.
    #[must_use]
    pub fn after(self, signal: Signalled, now: Instant, drain: Duration) -> Phase {
        let is_another = |last| now.saturating_duration_since(last) > Duration::from_millis(SAME_SIGNAL_MS_MAX);
        match (self, signal) {
            (Phase::Serving, Signalled::Drain) => Phase::Draining { begun: now, end_signalled: None },
            (Phase::Serving, Signalled::End) => Phase::Draining { begun: now, end_signalled: Some(now) }.at(now, drain),
            (Phase::Draining { begun, end_signalled: None }, Signalled::End) => {
                Phase::Draining { begun, end_signalled: Some(now) }.at(now, drain)
            }
            (Phase::Draining { end_signalled: Some(last), .. }, Signalled::End) if is_another(last) => {
                Phase::Stopping { end_signalled: now }
            }
            (Phase::Stopping { end_signalled: last }, Signalled::End) if is_another(last) => Phase::Exiting,
            (same, _) => same,
        }
    }

    /// The phase at this time, without a signal.
    #[must_use]
    pub fn at(self, now: Instant, drain: Duration) -> Phase {
        match (self, self.drained_at(drain)) {
            (Phase::Draining { end_signalled: Some(last), .. }, Some(end)) if end <= now => {
                Phase::Stopping { end_signalled: last }
            }
            _ => self,
        }
    }

    /// Whether the server completes what is under way, or not even that.
    pub fn is_stopping(self) -> bool {
        matches!(self, Phase::Stopping { .. } | Phase::Exiting)
    }

    /// When the server has drained. `None` in other phases, and if only a signal ends the draining.
    pub fn drained_at(self, drain: Duration) -> Option<Instant> {
        match self {
            Phase::Draining { begun, end_signalled: Some(_) } => Some(begun + drain),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Follows `events`, each with its time in ms: `t` is SIGTERM, `u` is SIGUSR1, and `-` is a look at the clock.
    #[track_caller]
    fn check(drain_s: u64, events: &[(u64, char)], expect: &str) {
        let (begin, drain) = (Instant::now(), Duration::from_secs(drain_s));
        let mut phase = Phase::Serving;
        for (at_ms, event) in events {
            let now = begin + Duration::from_millis(*at_ms);
            phase = match event {
                't' => phase.after(Signalled::End, now, drain),
                'u' => phase.after(Signalled::Drain, now, drain),
                _ => phase.at(now, drain),
            };
        }
        let name = match phase {
            Phase::Serving => "serving",
            Phase::Draining { .. } => "draining",
            Phase::Stopping { .. } => "stopping",
            Phase::Exiting => "exiting",
        };
        assert_eq!(name, expect, "{events:?}");
    }

    #[test]
    fn without_a_time_to_drain_the_first_signal_stops_and_another_exits() {
        check(0, &[(5, '-')], "serving");
        check(0, &[(0, 't')], "stopping");
        check(0, &[(0, 't'), (1, 't')], "stopping");
        check(0, &[(0, 't'), (1000, 't')], "stopping");
        check(0, &[(0, 't'), (1001, 't')], "exiting");
        check(0, &[(0, 't'), (60_000, '-')], "stopping");
    }

    #[test]
    fn the_first_signal_drains_the_second_stops_and_the_third_exits() {
        check(10, &[(0, 't')], "draining");
        check(10, &[(0, 't'), (9_999, '-')], "draining");
        check(10, &[(0, 't'), (10_000, '-')], "stopping");
        check(10, &[(0, 't'), (1000, 't')], "draining");
        check(10, &[(0, 't'), (1001, 't')], "stopping");
        check(10, &[(0, 't'), (1001, 't'), (2001, 't')], "stopping");
        check(10, &[(0, 't'), (1001, 't'), (2002, 't')], "exiting");
        check(10, &[(0, 't'), (10_000, '-'), (10_001, 't')], "exiting");
    }

    #[test]
    fn after_a_signal_to_drain_a_server_does_so_until_a_signal_to_end() {
        for drain_s in [0, 10] {
            check(drain_s, &[(0, 'u'), (3_600_000, '-')], "draining");
            check(drain_s, &[(0, 'u'), (5, 'u')], "draining");
            check(drain_s, &[(0, 'u'), (20_000, 't')], "stopping");
            check(drain_s, &[(0, 'u'), (20_000, 't'), (20_001, 'u')], "stopping");
        }
        check(0, &[(0, 'u'), (1, 't')], "stopping");
        check(10, &[(0, 'u'), (4_000, 't')], "draining");
        check(10, &[(0, 'u'), (4_000, 't'), (10_000, '-')], "stopping");
        check(10, &[(0, 'u'), (4_000, 't'), (5_001, 't')], "stopping");
        check(10, &[(0, 't'), (1, 'u')], "draining");
    }
}
