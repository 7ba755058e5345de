//! How long is it worth waiting for others, if answers must not take longer than a bound?
//!
//! The delay grows by a small step where requests meet: they queue behind a run, or others join a batch that waits. It is halved where waiting was in vain:
//! nobody joined, or the answers came later than the bound. So it is 0 while one client asks at a time, however fast it asks. What is added in steps and
//! taken away by halves settles, as the windows of TCP do, and it never exceeds what the bound leaves beside a run.

/// The delay grows in so many steps to the bound.
const STEPS: u64 = 32;

/// The part of a run that was shorter than expected by which the expectation falls, as a power of two.
const RUN_SHIFT: u32 = 3;

/// A delay that follows the load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tuning {
    bound_us: u64,
    delay_us: u64,
    /// How long a run is expected to take: rises at once and falls slowly.
    run_us: u64,
}

/// A batch that starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// Its first request came, and an instance was free.
    AtOnce,
    /// Requests of it waited for an instance.
    AfterRun,
    /// An instance was free, and it waited for others: so many came. `filled`: no more could join.
    AfterDelay {
        /// How many requests came meanwhile.
        joined: usize,
        /// Whether it started before its time was over.
        filled: bool,
    },
}

impl Tuning {
    /// Nothing is known of the load: nobody waits for others.
    pub fn new(bound_us: u64) -> Tuning {
        Tuning { bound_us, delay_us: 0, run_us: 0 }
    }

    /// How long a request waits for others now.
    pub fn delay_us(&self) -> u64 {
        self.delay_us.min(self.delay_max_us())
    }

    /// What the bound leaves beside a run.
    fn delay_max_us(&self) -> u64 {
        self.bound_us.saturating_sub(self.run_us)
    }

    /// A batch starts.
    pub fn started(&mut self, start: Start) {
        match start {
            Start::AtOnce => {}
            Start::AfterDelay { joined: 0, .. } => self.halve(),
            // The delay was longer than it needed to be; how much longer is not known.
            Start::AfterDelay { filled: true, .. } => {}
            Start::AfterRun | Start::AfterDelay { .. } => self.delay_us += self.step_us(),
        }
        self.delay_us = self.delay_us();
    }

    /// A run has ended that took so long. `late`: its batch had waited for others, and answers came later than the bound.
    pub fn ended(&mut self, run_us: u64, late: bool) {
        let fallen = self.run_us - (self.run_us.saturating_sub(run_us) >> RUN_SHIFT);
        self.run_us = fallen.max(run_us);
        if late {
            self.halve();
        }
    }

    /// The bound.
    pub fn bound_us(&self) -> u64 {
        self.bound_us
    }

    fn step_us(&self) -> u64 {
        (self.bound_us / STEPS).max(1)
    }

    /// What is less than a step is nothing: a delay that is halved for ever would never be 0.
    fn halve(&mut self) {
        self.delay_us = if self.delay_us / 2 < self.step_us() { 0 } else { self.delay_us / 2 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Start = Start::AfterDelay { joined: 0, filled: false };
    const JOINED: Start = Start::AfterDelay { joined: 2, filled: false };
    const FILLED: Start = Start::AfterDelay { joined: 7, filled: true };

    /// A bound of 3200 µs, runs of 200 µs; the delay after each start.
    #[track_caller]
    fn check(starts: &[Start], expect: &[u64]) {
        let mut tuning = Tuning::new(3200);
        tuning.ended(200, false);
        let delays: Vec<u64> = starts
            .iter()
            .map(|start| {
                tuning.started(*start);
                tuning.delay_us()
            })
            .collect();
        assert_eq!(delays, expect, "{starts:?}");
    }

    #[test]
    fn a_delay_grows_where_requests_meet_and_shrinks_where_nobody_comes() {
        check(&[Start::AtOnce; 3], &[0, 0, 0]);
        check(&[Start::AfterRun, Start::AfterRun, JOINED, JOINED], &[100, 200, 300, 400]);
        check(&[Start::AfterRun, JOINED, JOINED, JOINED, FILLED, ALONE, ALONE], &[100, 200, 300, 400, 400, 200, 100]);
        check(&[Start::AfterRun, ALONE, ALONE], &[100, 0, 0]);
    }

    #[test]
    fn a_delay_and_a_run_together_never_exceed_the_bound() {
        let mut tuning = Tuning::new(3200);
        for run_us in [200, 3000, 100, 5000, 1] {
            tuning.ended(run_us, false);
            for _ in 0..100 {
                tuning.started(Start::AfterRun);
                assert!(tuning.delay_us() + run_us.min(3200) <= 3200, "{tuning:?}");
            }
        }
    }

    #[test]
    fn answers_that_come_too_late_halve_it() {
        let mut tuning = Tuning::new(3200);
        (0..8).for_each(|_| tuning.started(Start::AfterRun));
        tuning.ended(100, true);
        assert_eq!(tuning.delay_us(), 400);
    }

    #[test]
    fn one_long_run_is_forgotten_after_some_short_ones() {
        let mut tuning = Tuning::new(3200);
        tuning.ended(3200, false);
        assert_eq!(tuning.delay_max_us(), 0);
        (0..30).for_each(|_| tuning.ended(100, false));
        assert!(tuning.delay_max_us() > 3000, "{tuning:?}");
    }
}
