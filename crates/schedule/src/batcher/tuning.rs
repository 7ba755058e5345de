//! How does the delay adapt to the load, if responses must not take longer than a bound?
//!
//! The delay grows by a small step if requests can share a batch: they waited behind a run, or others joined a batch that waited. It is halved if the
//! wait was useless: no request joined, or the responses came later than the bound. So it is 0 while one client sends one request at a time, however
//! fast the client is. Additive increase and multiplicative decrease converge, as in TCP's congestion control. The delay and the expected run
//! together never exceed the bound.

/// The number of steps from 0 to the bound.
const STEPS: u64 = 32;

/// If a run was shorter than expected, the difference is shifted right by this many bits, and the expected time falls by the result.
const RUN_SHIFT: u32 = 3;

/// A delay that adapts to the load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tuning {
    bound_us: u64,
    delay_us: u64,
    /// The expected time of a run. It rises at once and falls slowly.
    run_us: u64,
}

/// How a batch started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// An instance was free, and the batch did not wait.
    AtOnce,
    /// Its requests waited for an instance.
    AfterRun,
    /// An instance was free, and the batch waited for more requests.
    AfterDelay {
        /// The number of requests that joined.
        joined: usize,
        /// Whether it was full before the delay was over.
        filled: bool,
    },
}

impl Tuning {
    /// The state before anything was measured: no delay.
    pub fn new(bound_us: u64) -> Tuning {
        Tuning { bound_us, delay_us: 0, run_us: 0 }
    }

    /// The current delay.
    pub fn delay_us(&self) -> u64 {
        self.delay_us.min(self.delay_max_us())
    }

    /// The longest delay: the bound less the expected run.
    fn delay_max_us(&self) -> u64 {
        self.bound_us.saturating_sub(self.run_us)
    }

    /// Adapts the delay at the start of a batch.
    pub fn started(&mut self, start: Start) {
        match start {
            Start::AtOnce => {}
            Start::AfterDelay { joined: 0, .. } => self.halve(),
            // The delay was longer than needed, but it is unknown by how much.
            Start::AfterDelay { filled: true, .. } => {}
            Start::AfterRun | Start::AfterDelay { .. } => self.delay_us += self.step_us(),
        }
        self.delay_us = self.delay_us();
    }

    /// Adapts to a run of `run_us`. `late`: its batch had waited for others, and its responses came later than the bound.
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

    /// Halves the delay. A result of less than a step becomes 0, because halving alone never reaches 0.
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

    /// Checks the delay after each start, with a bound of 3200 µs and runs of 200 µs.
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
    fn a_delay_grows_if_requests_meet_and_shrinks_if_none_comes() {
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
