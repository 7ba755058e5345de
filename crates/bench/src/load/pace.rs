//! When is the next request due?

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lock;
use crate::random::Random;

/// The times at which requests are due, of all workers together.
#[derive(Debug)]
pub(crate) enum Pace {
    /// As soon as the request before has ended.
    Closed,
    /// At times that do not depend on responses.
    Open(Mutex<Clock>),
}

/// The times between requests.
#[derive(Clone, Debug)]
pub(crate) enum Schedule {
    Constant(Duration),
    /// A Poisson process with this mean.
    Poisson(Duration),
    /// These, again and again.
    Intervals(Vec<Duration>),
}

#[derive(Debug)]
pub(crate) struct Clock {
    /// `None`: the schedule begins with the next request.
    next: Option<Instant>,
    schedule: Schedule,
    random: Random,
    issued: usize,
}

impl Pace {
    pub(crate) fn open(schedule: Schedule) -> Pace {
        Pace::Open(Mutex::new(Clock { next: None, schedule, random: Random::new(2), issued: 0 }))
    }

    /// Makes the next request due at once, and the others after it.
    pub(super) fn restart(&self) {
        if let Pace::Open(clock) = self {
            lock(clock).next = None;
        }
    }

    /// Takes the next request: when it is due, and whether that is past. `None`: now.
    pub(super) fn next(&self) -> Option<(Instant, bool)> {
        let Pace::Open(clock) = self else { return None };
        let mut clock = lock(clock);
        let now = Instant::now();
        let due = clock.next(now);
        Some((due, due < now))
    }
}

impl Clock {
    fn next(&mut self, now: Instant) -> Instant {
        let due = self.next.unwrap_or(now);
        let wait = match &self.schedule {
            Schedule::Constant(wait) => *wait,
            Schedule::Poisson(mean) => mean.mul_f64(self.random.exponential()),
            Schedule::Intervals(waits) => waits.get(self.issued % waits.len().max(1)).copied().unwrap_or_default(),
        };
        self.issued += 1;
        self.next = Some(due + wait);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(schedule: Schedule, expect: &[u64]) {
        let pace = Pace::open(schedule);
        let (start, is_late) = pace.next().expect("a time");
        assert!(!is_late);
        let found = expect.iter().map(|_| pace.next().map_or(0, |(due, _)| (due - start).as_millis() as u64));
        assert_eq!(found.collect::<Vec<_>>(), expect);
    }

    #[test]
    fn requests_are_due_whether_earlier_ones_were_answered_or_not() {
        let ms = Duration::from_millis;
        check(Schedule::Constant(ms(5)), &[5, 10, 15]);
        check(Schedule::Intervals(vec![ms(1), ms(9)]), &[1, 10, 11, 20]);
    }

    #[test]
    fn a_poisson_process_has_its_mean() {
        let pace = Pace::open(Schedule::Poisson(Duration::from_millis(1)));
        let (start, _) = pace.next().expect("a time");
        let (last, _) = (0..10_000).filter_map(|_| pace.next()).last().expect("a time");
        let mean_ms = (last - start).as_secs_f64() / 10.0;
        assert!((0.95..1.05).contains(&mean_ms), "{mean_ms}");
    }
}
