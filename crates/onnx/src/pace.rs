//! How many stages does a run take, so that none is long and quick runs stay whole?
//!
//! A stage costs some 10 µs by itself, and the engine allocates anew in each. So only runs that take long are done in stages, by what earlier runs of the
//! same graph took. The first run has all stages. It shows which part of the time each takes.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A stage is to take about this long.
const STAGE: Duration = Duration::from_millis(20);
/// A run that took less than this is quick. Runs of its size or less count as quick from then on.
const QUICK: Duration = Duration::from_millis(10);
/// A run that is this many times as large as any before may take any time.
const LARGER_MAX: u64 = 4;

/// At which boundaries a run is interrupted.
#[derive(Clone, Debug, PartialEq)]
pub enum Stops {
    /// At none.
    None,
    /// At all.
    All,
    /// Behind the stages with these indices.
    Behind(Vec<usize>),
}

/// What is known of the runs of a graph. The size of a run is the number of elements of its inputs.
#[derive(Debug, Default)]
pub struct Pace {
    /// Runs below this size are quick.
    quick: AtomicU64,
    /// The largest run that was not.
    known: AtomicU64,
    /// The nanoseconds of a run for 1,024 elements, lately.
    cost: AtomicU64,
    /// The part that each stage had of a run with all stages.
    shares: OnceLock<Box<[f64]>>,
}

impl Pace {
    /// Whether runs of this size are known to be quick.
    pub fn is_quick(&self, size: usize) -> bool {
        (size as u64) < self.quick.load(Ordering::Relaxed)
    }

    /// Where a run of this size is to be interrupted.
    pub fn stops(&self, size: usize) -> Stops {
        if self.is_quick(size) {
            return Stops::None;
        }
        let known = self.known.load(Ordering::Relaxed);
        let Some(shares) = self.shares.get().filter(|_| size as u64 <= known.saturating_mul(LARGER_MAX)) else {
            return Stops::All;
        };
        let predicted_ns = self.cost.load(Ordering::Relaxed) as f64 * size as f64 / 1024.0;
        let part = STAGE.as_nanos() as f64 / predicted_ns.max(1.0);
        if part >= 1.0 { Stops::None } else { Stops::Behind(divide(shares, part)) }
    }

    /// A run of this size was done. `stages` are the times of all stages, if it had all.
    pub fn note(&self, size: usize, took: Duration, stages: Option<&[Duration]>) {
        let size = size as u64;
        if took < QUICK {
            self.quick.fetch_max(size + 1, Ordering::Relaxed);
            return;
        }
        // The machine may have been busy. The next runs show it.
        if took > STAGE && size < self.quick.load(Ordering::Relaxed) {
            self.quick.store(0, Ordering::Relaxed);
        }
        if let Some(stages) = stages {
            let all = took.as_secs_f64();
            self.shares.get_or_init(|| stages.iter().map(|stage| stage.as_secs_f64() / all).collect());
        }
        let found = (took.as_nanos() as f64 * 1024.0 / size.max(1) as f64) as u64;
        let before = self.cost.load(Ordering::Relaxed);
        let cost = if before == 0 { found } else { before / 2 + found / 2 };
        self.cost.store(cost, Ordering::Relaxed);
        self.known.fetch_max(size, Ordering::Relaxed);
    }
}

/// Behind which stages a run is interrupted, so that what lies between has about this part of the time. A stage that has more stays alone.
fn divide(shares: &[f64], part: f64) -> Vec<usize> {
    let (mut stops, mut sum) = (Vec::new(), 0.0);
    for (at, pair) in shares.windows(2).enumerate() {
        let [share, next] = pair else { continue };
        sum += share;
        if sum + next > part {
            stops.push(at);
            sum = 0.0;
        }
    }
    stops
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[track_caller]
    fn check_divided(shares: &[f64], part: f64, expect: &[usize]) {
        assert_eq!(divide(shares, part), expect);
    }

    #[test]
    fn stages_are_joined_as_long_as_they_are_short_together() {
        check_divided(&[], 0.5, &[]);
        check_divided(&[1.0], 0.5, &[]);
        check_divided(&[0.25, 0.25, 0.25, 0.25], 0.5, &[1]);
        check_divided(&[0.25, 0.25, 0.25, 0.25], 0.3, &[0, 1, 2]);
        check_divided(&[0.1, 0.8, 0.05, 0.05], 0.2, &[0, 1]);
        check_divided(&[0.1, 0.1, 0.7, 0.1], 0.2, &[1, 2]);
        check_divided(&[0.25, 0.25, 0.25, 0.25], 2.0, &[]);
    }

    #[test]
    fn quick_runs_stay_whole_after_the_first_of_their_size() {
        let pace = Pace::default();
        assert_eq!((pace.stops(100), pace.stops(0)), (Stops::All, Stops::All));
        pace.note(100, MS, Some(&[MS / 2, MS / 2]));
        assert_eq!((pace.stops(100), pace.stops(0), pace.stops(101)), (Stops::None, Stops::None, Stops::All));
        // Once it was slow: a busy machine, or other values.
        pace.note(100, 30 * MS, None);
        assert!(!pace.is_quick(100));
        pace.note(100, MS, None);
        assert!(pace.is_quick(100));
    }

    #[test]
    fn long_runs_are_divided_by_what_they_took() {
        let pace = Pace::default();
        let stages = [10 * MS; 8];
        pace.note(1000, 80 * MS, Some(&stages));
        assert_eq!(pace.stops(1000), Stops::Behind(vec![1, 3, 5]));
        // Half of it takes 40 ms, four times as much 320 ms, and of more nothing is known.
        assert_eq!(pace.stops(500), Stops::Behind(vec![3]));
        assert_eq!(pace.stops(4000), Stops::Behind((0..7).collect()));
        assert_eq!((pace.stops(4001), pace.stops(100)), (Stops::All, Stops::None));
        // The machine has become faster, in some runs.
        for _ in 0..20 {
            pace.note(1000, 15 * MS, None);
        }
        assert_eq!(pace.stops(1000), Stops::None);
    }
}
