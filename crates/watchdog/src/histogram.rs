//! How many polls took how long?

use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of the buckets, in ns: 100 µs to 10 s.
pub const BOUNDS_NS: [u64; 11] = [
    100_000,
    250_000,
    1_000_000,
    2_500_000,
    10_000_000,
    25_000_000,
    100_000_000,
    250_000_000,
    1_000_000_000,
    2_500_000_000,
    10_000_000_000,
];

const BUCKETS: usize = BOUNDS_NS.len() + 1;

/// A histogram that one thread writes and others read.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

/// The sum of one or several histograms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How many times fell into each bucket. Bucket `i` ends at `BOUNDS_NS[i]`. The last bucket has the times above all bounds.
    pub buckets: [u64; BUCKETS],
    /// The sum of all times.
    pub sum_ns: u64,
}

impl Histogram {
    /// Adds one time. Only its own thread may do that: a load and a store are cheaper than an atomic addition.
    pub fn note(&self, ns: u64) {
        let add = |to: &AtomicU64, more: u64| to.store(to.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        if let Some(bucket) = self.buckets.get(bucket_of(ns)) {
            add(bucket, 1);
        }
        add(&self.sum_ns, ns);
    }

    /// Adds what it counted to `counts`.
    pub fn add_to(&self, counts: &mut Counts) {
        for (to, from) in counts.buckets.iter_mut().zip(&self.buckets) {
            *to += from.load(Ordering::Relaxed);
        }
        counts.sum_ns += self.sum_ns.load(Ordering::Relaxed);
    }
}

impl Counts {
    /// How many times were added.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// For each of [`BOUNDS_NS`], how many times were not longer.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        let sums = self.buckets.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        BOUNDS_NS.into_iter().zip(sums)
    }
}

fn bucket_of(ns: u64) -> usize {
    BOUNDS_NS.iter().position(|bound| ns <= *bound).unwrap_or(BOUNDS_NS.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_counted_in_the_bucket_of_the_next_bound() {
        for (ns, bucket) in [(0, 0), (100_000, 0), (100_001, 1), (99_000_000, 6), (101_000_000, 7), (u64::MAX, 11)] {
            assert_eq!(bucket_of(ns), bucket, "{ns}");
        }
    }

    #[test]
    fn counts_of_threads_add_up() {
        let (one, other) = (Histogram::default(), Histogram::default());
        for ns in [10, 200_000, 20_000_000_000] {
            one.note(ns);
        }
        other.note(50);
        let mut counts = Counts::default();
        one.add_to(&mut counts);
        other.add_to(&mut counts);
        assert_eq!((counts.count(), counts.sum_ns), (4, 20_000_200_060));
        let cumulative: Vec<_> = counts.cumulative().collect();
        assert_eq!((cumulative[0], cumulative[1], cumulative[10]), ((100_000, 2), (250_000, 3), (10_000_000_000, 3)));
    }
}
