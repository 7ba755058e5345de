//! How are the latencies of a model version distributed?
//!
//! Times are counted in histogram buckets whose width is 1/32 of the time, so the memory does not grow with the number of requests. Quantiles are of
//! the last minute, as in Triton.

use std::sync::{MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_request::report::{BucketReport, Latency, LatencyReport, SummaryReport};

/// Which latencies are measured, from `--metrics-config`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LatencyMetrics {
    /// The quantiles of the summaries. `None` if there are no summaries.
    pub quantiles: Option<Vec<f64>>,
    /// Whether the times to the first response are measured.
    pub first_response: bool,
}

/// The metric whose buckets an author may choose.
pub(crate) const FIRST_RESPONSE: &str = "nv_inference_first_response_histogram_ms";

/// Bounds of the times to the first response in ms, where a model's author gives no others.
pub(crate) const FIRST_RESPONSE_MS: [f64; 4] = [100.0, 500.0, 2000.0, 5000.0];

/// The latencies of one model version, on one device if they are measured for each.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    quantiles: Vec<f64>,
    summaries: Vec<(Latency, Mutex<Summary>)>,
    first_response: Option<Mutex<Buckets>>,
}

impl Latencies {
    /// The latencies that are measured for a version. `caches` says that it uses the response cache.
    pub fn new(metrics: &LatencyMetrics, caches: bool, first_response_ms: &[f64]) -> Latencies {
        use Latency::{CacheHit, CacheMiss, ComputeInfer, ComputeInput, ComputeOutput, Queue, Request};
        let kept = if caches {
            // Triton has no summary of whole requests for models that use the cache.
            [Queue, ComputeInput, ComputeInfer, ComputeOutput, CacheHit, CacheMiss].to_vec()
        } else {
            [Request, Queue, ComputeInput, ComputeInfer, ComputeOutput].to_vec()
        };
        let summaries = kept.into_iter().filter(|_| metrics.quantiles.is_some());
        Latencies {
            quantiles: metrics.quantiles.clone().unwrap_or_default(),
            summaries: summaries.map(|latency| (latency, Mutex::default())).collect(),
            first_response: metrics.first_response.then(|| Mutex::new(Buckets::new(first_response_ms))),
        }
    }

    /// The same latencies, before the first one is added.
    pub fn emptied(&self) -> Latencies {
        let first_response = |buckets: &Mutex<Buckets>| Mutex::new(Buckets::new(&locked(buckets).bounds_ms()));
        Latencies {
            quantiles: self.quantiles.clone(),
            summaries: self.summaries.iter().map(|(latency, _)| (*latency, Mutex::default())).collect(),
            first_response: self.first_response.as_ref().map(first_response),
        }
    }

    /// Whether no latency is measured.
    pub fn is_empty(&self) -> bool {
        self.summaries.is_empty() && self.first_response.is_none()
    }

    /// Adds a time of `ns` that ended at `now_us`.
    pub fn note(&self, latency: Latency, ns: u64, now_us: u64) {
        if let Some((_, summary)) = self.summaries.iter().find(|(of, _)| *of == latency) {
            locked(summary).add(ns / 1000, now_us);
        }
    }

    /// Adds a request whose first response came after `ns`.
    pub fn note_first_response(&self, ns: u64) {
        if let Some(buckets) = &self.first_response {
            // Triton counts whole milliseconds.
            locked(buckets).add((ns / 1_000_000) as f64);
        }
    }

    /// The values at that time.
    pub fn report(&self, now_us: u64) -> LatencyReport {
        let report = |(of, summary): &(Latency, Mutex<Summary>)| (*of, locked(summary).report(&self.quantiles, now_us));
        LatencyReport {
            summaries: self.summaries.iter().map(report).collect(),
            first_response: self.first_response.as_ref().map(|buckets| locked(buckets).report()),
        }
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The last minute is divided into this many parts. The oldest one is dropped when a new one begins.
const PARTS: usize = 5;
const PART_US: u64 = 12_000_000;
/// The number of buckets in each doubling of a time.
const STEPS: u64 = 32;
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// Longer times count as this one: twelve days.
const LONGEST_US: u64 = 1 << 40;
const BUCKET_COUNT: usize = bucket_of(LONGEST_US) + 1;

/// The number of times in each bucket. Most requests of most servers fall into few buckets.
#[derive(Debug, Default)]
struct Summary {
    count: u64,
    sum_us: u64,
    parts: [Part; PARTS],
}

#[derive(Debug, Default)]
struct Part {
    /// The number of the period of twelve seconds that is counted here.
    number: u64,
    /// By bucket. Empty before the first time is added.
    counts: Vec<u32>,
}

impl Summary {
    fn add(&mut self, us: u64, now_us: u64) {
        self.count += 1;
        self.sum_us = self.sum_us.saturating_add(us);
        let number = now_us / PART_US;
        let part = &mut self.parts[(number % PARTS as u64) as usize];
        if part.number != number || part.counts.is_empty() {
            part.number = number;
            part.counts.clear();
            part.counts.resize(BUCKET_COUNT, 0);
        }
        let count = &mut part.counts[bucket_of(us.min(LONGEST_US))];
        *count = count.saturating_add(1);
    }

    fn report(&self, quantiles: &[f64], now_us: u64) -> SummaryReport {
        let now = now_us / PART_US;
        let late = self.parts.iter().filter(|part| !part.counts.is_empty() && part.number + PARTS as u64 > now);
        let mut counts = vec![0_u64; BUCKET_COUNT];
        for part in late {
            counts.iter_mut().zip(&part.counts).for_each(|(sum, count)| *sum += u64::from(*count));
        }
        let report = quantiles.iter().map(|quantile| (*quantile, time_at(*quantile, &counts)));
        SummaryReport { quantiles: report.collect(), count: self.count, sum_us: self.sum_us }
    }
}

/// The time below which a share of `quantile` of all times lies.
fn time_at(quantile: f64, counts: &[u64]) -> Option<u64> {
    let all: u64 = counts.iter().sum();
    let rank = ((quantile * all as f64).ceil() as u64).clamp(1, all.max(1));
    let mut seen = 0;
    let bucket = counts.iter().position(|count| {
        seen += count;
        seen >= rank
    })?;
    Some(middle_of(bucket))
}

/// The bucket of a time.
const fn bucket_of(us: u64) -> usize {
    if us < STEPS {
        return us as usize;
    }
    let doublings = us.ilog2() - STEP_BITS;
    (doublings as u64 * STEPS + (us >> doublings)) as usize
}

/// The middle of a bucket.
fn middle_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * STEPS {
        return bucket;
    }
    let doublings = bucket / STEPS - 1;
    let first = (bucket - doublings * STEPS) << doublings;
    first + ((1 << doublings) - 1) / 2
}

/// A histogram of times in ms.
#[derive(Debug)]
struct Buckets {
    /// Each bound, with the number of times that are at most the bound and above the one before.
    bounds: Vec<(f64, u64)>,
    count: u64,
    sum_ms: f64,
}

impl Buckets {
    fn new(bounds_ms: &[f64]) -> Buckets {
        let mut bounds: Vec<_> = bounds_ms.iter().map(|bound| (*bound, 0)).collect();
        bounds.sort_by(|one, next| one.0.total_cmp(&next.0));
        Buckets { bounds, count: 0, sum_ms: 0.0 }
    }

    fn bounds_ms(&self) -> Vec<f64> {
        self.bounds.iter().map(|(bound, _)| *bound).collect()
    }

    fn add(&mut self, ms: f64) {
        self.count += 1;
        self.sum_ms += ms;
        if let Some((_, count)) = self.bounds.iter_mut().find(|(bound, _)| ms <= *bound) {
            *count += 1;
        }
    }

    fn report(&self) -> BucketReport {
        let mut within = 0;
        let cumulative = self.bounds.iter().map(|(bound, count)| {
            within += count;
            (*bound, within)
        });
        BucketReport { buckets: cumulative.collect(), count: self.count, sum_ms: self.sum_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_found_again_to_one_part_in_32() {
        let mut last = 0;
        for us in (0..2000).chain((11..40).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 12345])) {
            let bucket = bucket_of(us);
            assert!(bucket < BUCKET_COUNT && bucket >= last, "{us}");
            last = if us < 2000 { bucket } else { 0 };
            assert!(middle_of(bucket).abs_diff(us) * STEPS <= us, "{us} as {}", middle_of(bucket));
        }
        assert_eq!(bucket_of(LONGEST_US) + 1, BUCKET_COUNT);
    }

    #[track_caller]
    fn check(times: &[(u64, u64)], now_us: u64, expect: &[Option<u64>]) {
        let mut summary = Summary::default();
        for (us, at_us) in times {
            summary.add(*us, *at_us);
        }
        let report = summary.report(&[0.5, 0.9], now_us);
        assert_eq!(report.quantiles.iter().map(|(_, value)| *value).collect::<Vec<_>>(), expect, "{times:?}");
        assert_eq!((report.count, report.sum_us), (times.len() as u64, times.iter().map(|(us, _)| us).sum()));
    }

    #[test]
    fn quantiles_are_those_of_the_last_minute() {
        check(&[], 0, &[None, None]);
        check(&[(5, 0)], 0, &[Some(5), Some(5)]);
        check(
            &[(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (8, 0), (9, 0), (10, 0)],
            0,
            &[Some(5), Some(9)],
        );
        let minute = 5 * PART_US;
        check(&[(30, 0), (5, minute - 1)], minute - 1, &[Some(5), Some(30)]);
        check(&[(30, 0), (5, minute - 1)], minute, &[Some(5), Some(5)]);
        check(&[(30, 0), (5, minute)], 3 * minute, &[None, None]);
        check(&[(30, 0), (5, 7 * minute)], 7 * minute, &[Some(5), Some(5)]);
    }

    #[test]
    fn buckets_are_cumulative_whatever_their_order() {
        let mut buckets = Buckets::new(&[500.0, 100.0]);
        for ms in [1.0, 100.0, 499.5, 501.0] {
            buckets.add(ms);
        }
        let expect = BucketReport { buckets: vec![(100.0, 2), (500.0, 3)], count: 4, sum_ms: 1101.5 };
        assert_eq!(buckets.report(), expect);
    }

    #[test]
    fn models_with_a_cache_have_other_summaries() {
        let metrics = LatencyMetrics { quantiles: Some(vec![0.5]), first_response: false };
        let kept = |caches| Latencies::new(&metrics, caches, &[]).report(0).summaries.len();
        assert_eq!((kept(false), kept(true)), (5, 6));
        assert!(Latencies::new(&LatencyMetrics::default(), true, &[]).is_empty());
    }
}
