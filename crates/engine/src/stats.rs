//! How often did a model version run, and how long did it take?
//!
//! Every request writes these numbers, so they are atomics without a lock. A request is counted in all numbers before its client has the answer.
//! Requests that run now may be in some of the numbers and not yet in others.

mod responses;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use nerite_backend::{Meter, Outcome, RequestTimes, ResponseDurations, Times, now_ns};
use nerite_locks::Mutex;
use nerite_request::report::{BatchReport, Duration, Latency, LatencyReport, StatisticsReport};

use self::responses::ResponseStats;
use crate::latencies::Latencies;
use crate::limits::BATCH_SIZES_MAX;

/// The statistics of one model version, written by executions and read by clients.
#[derive(Debug)]
pub struct Stats {
    name: String,
    version: i64,
    load_ns: u64,
    last_inference_ms: AtomicU64,
    /// The millisecond of [`now_ns`] whose date is `last_inference_ms`.
    dated_ms: AtomicU64,
    /// What is counted for each device. The first entry counts runs on none of the other devices, and requests that did not run.
    devices: Box<[Counters]>,
    /// Indexed by rows.
    batches: Box<[OnceLock<Box<Phases>>]>,
    /// Batches of more rows than `max_batch_size`: models without batches, whose runtime counts rows in another way.
    larger: Mutex<BTreeMap<u64, BatchReport>>,
    responses: ResponseStats,
}

/// What is counted for each device.
#[derive(Debug, Default)]
struct Counters {
    latencies: Latencies,
    inference_count: AtomicU64,
    execution_count: AtomicU64,
    success: Sum,
    fail: Sum,
    queue: Sum,
    compute: Phases,
    cache_hit: Sum,
    cache_miss: Sum,
    failures: [AtomicU64; 4],
}

/// Positions in [`StatisticsReport::failures`].
const REJECTED: usize = 0;
const CANCELLED: usize = 1;
const BACKEND: usize = 2;
const OTHER: usize = 3;

impl Stats {
    /// Statistics of a version that took `load_ns` to load, and whose batches have up to `rows_max` rows.
    pub fn new(name: &str, version: i64, load_ns: u64, rows_max: usize, latencies: Latencies) -> Stats {
        Stats {
            name: name.to_owned(),
            version,
            load_ns,
            last_inference_ms: AtomicU64::new(0),
            dated_ms: AtomicU64::new(0),
            devices: Box::new([Counters::new(latencies)]),
            batches: (0..=rows_max.clamp(1, BATCH_SIZES_MAX)).map(|_| OnceLock::new()).collect(),
            larger: Mutex::default(),
            responses: ResponseStats::default(),
        }
    }

    /// The same, with counters for this many devices, numbered from 1.
    pub fn with_devices(self, devices: u8) -> Stats {
        let counters = |first: &Counters| (0..=devices).map(|_| Counters::new(first.latencies.emptied())).collect();
        let devices = self.devices.first().map(counters).unwrap_or_default();
        Stats { devices, ..self }
    }

    /// The counters of a device.
    fn device(&self, device: u8) -> Option<&Counters> {
        self.devices.get(usize::from(device)).or_else(|| self.devices.first())
    }

    /// The statistics as clients see them. `pending` is the number of waiting requests.
    pub fn report(&self, pending: u64) -> StatisticsReport {
        let counted = self.batches.iter().enumerate().filter_map(|(rows, phases)| {
            let [compute_input, compute_infer, compute_output] = phases.get()?.duration();
            Some(BatchReport { batch_size: rows as u64, compute_input, compute_infer, compute_output })
        });
        let larger = self.larger.lock().unwrap_or_else(PoisonError::into_inner);
        let mut report = StatisticsReport {
            name: self.name.clone(),
            version: self.version,
            last_inference_ms: self.last_inference_ms.load(Ordering::Relaxed),
            batches: counted.chain(larger.values().copied()).collect(),
            responses: self.responses.report(),
            pending,
            load_ns: self.load_ns,
            ..StatisticsReport::default()
        };
        drop(larger);
        let each: Vec<StatisticsReport> = self.devices.iter().map(Counters::report).collect();
        for device in &each {
            add(&mut report, device);
        }
        if each.len() > 1 {
            report.by_device = each;
        }
        report
    }

    /// How its latencies are distributed, for each device that is counted apart.
    pub fn latencies(&self) -> Vec<LatencyReport> {
        let now_us = now_ns() / 1000;
        self.devices.iter().map(|counters| counters.latencies.report(now_us)).collect()
    }

    /// Counts a request that was not found in the response cache and whose response was kept. The look-up and the insertion together took `ns`.
    pub fn cache_missed(&self, ns: u64) {
        if let Some(counters) = self.device(0) {
            counters.cache_miss.add(ns);
            counters.note([(Latency::CacheMiss, ns)]);
        }
    }

    /// Notes the date of a batch that ended at `end_ns`. The clock is read once for all batches that end in the same millisecond. A compiled backend
    /// that measures no times reports 0 as the end. Then the clock is read for each batch.
    #[expect(clippy::disallowed_methods, reason = "statistics tell the date of the last inference")]
    fn note_date(&self, end_ns: u64) {
        let end_ms = end_ns / 1_000_000;
        if end_ms == 0 || self.dated_ms.load(Ordering::Relaxed) != end_ms {
            let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64);
            self.last_inference_ms.fetch_max(unix_ms, Ordering::Relaxed);
            self.dated_ms.store(end_ms, Ordering::Relaxed);
        }
    }

    /// Counts a batch that ran on this device.
    pub fn batch_on(&self, device: u8, rows: u64, times: &Times) {
        self.note_date(times.end);
        if let Some(counters) = self.device(device) {
            counters.execution_count.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(phases) = usize::try_from(rows).ok().and_then(|rows| self.batches.get(rows)) {
            return phases.get_or_init(Box::default).add(times);
        }
        let mut larger = self.larger.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = larger.entry(rows).or_insert(BatchReport { batch_size: rows, ..BatchReport::default() });
        let [input, infer, output] = phases_of(times);
        entry.compute_input.add(input);
        entry.compute_infer.add(infer);
        entry.compute_output.add(output);
    }
}

impl Counters {
    fn new(latencies: Latencies) -> Counters {
        Counters { latencies, ..Counters::default() }
    }

    /// Adds each of these durations, in ns.
    fn note<const N: usize>(&self, durations: [(Latency, u64); N]) {
        if !self.latencies.is_empty() {
            let now_us = now_ns() / 1000;
            for (latency, ns) in durations {
                self.latencies.note(latency, ns, now_us);
            }
        }
    }

    fn fail(&self, reason: usize, total: u64) {
        self.fail.add(total);
        if let Some(count) = self.failures.get(reason) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn report(&self) -> StatisticsReport {
        let [compute_input, compute_infer, compute_output] = self.compute.duration();
        StatisticsReport {
            inference_count: self.inference_count.load(Ordering::Relaxed),
            execution_count: self.execution_count.load(Ordering::Relaxed),
            success: self.success.duration(),
            fail: self.fail.duration(),
            queue: self.queue.duration(),
            compute_input,
            compute_infer,
            compute_output,
            cache_hit: self.cache_hit.duration(),
            cache_miss: self.cache_miss.duration(),
            failures: self.failures.each_ref().map(|count| count.load(Ordering::Relaxed)),
            ..StatisticsReport::default()
        }
    }
}

/// Adds what was counted for a device.
fn add(report: &mut StatisticsReport, device: &StatisticsReport) {
    report.inference_count += device.inference_count;
    report.execution_count += device.execution_count;
    for (sum, part) in [
        (&mut report.success, device.success),
        (&mut report.fail, device.fail),
        (&mut report.queue, device.queue),
        (&mut report.compute_input, device.compute_input),
        (&mut report.compute_infer, device.compute_infer),
        (&mut report.compute_output, device.compute_output),
        (&mut report.cache_hit, device.cache_hit),
        (&mut report.cache_miss, device.cache_miss),
    ] {
        sum.count += part.count;
        sum.ns += part.ns;
    }
    report.failures.iter_mut().zip(device.failures).for_each(|(sum, part)| *sum += part);
}

impl Meter for Stats {
    fn request(&self, request: &RequestTimes, outcome: Outcome) {
        let RequestTimes { arrived, rows, times, device } = *request;
        let Some(counters) = self.device(device) else { return };
        let total = now_ns().saturating_sub(arrived);
        let queue = times.start.saturating_sub(arrived);
        match outcome {
            Outcome::Success => {
                counters.success.add(total);
                counters.queue.add(queue);
                counters.compute.add(&times);
                let [input, infer, output] = phases_of(&times);
                counters.note([
                    (Latency::Request, total),
                    (Latency::Queue, queue),
                    (Latency::ComputeInput, input),
                    (Latency::ComputeInfer, infer),
                    (Latency::ComputeOutput, output),
                ]);
                counters.inference_count.fetch_add(u64::from(rows.max(1)), Ordering::Relaxed);
            }
            Outcome::FromCache => {
                counters.success.add(total);
                counters.queue.add(queue);
                let hit = times.end.saturating_sub(times.start);
                counters.cache_hit.add(hit);
                counters.note([(Latency::Queue, queue), (Latency::CacheHit, hit)]);
            }
            Outcome::Failed => counters.fail(BACKEND, total),
            Outcome::FailedElsewhere => counters.fail(OTHER, total),
            Outcome::Cancelled => counters.fail(CANCELLED, total),
            Outcome::Rejected => counters.fail(REJECTED, total),
        }
    }

    fn first_response(&self, arrived: u64, device: u8) {
        let latencies = self.device(device).map(|counters| &counters.latencies);
        if let Some(latencies) = latencies.filter(|latencies| !latencies.is_empty()) {
            latencies.note_first_response(now_ns().saturating_sub(arrived));
        }
    }

    fn response(&self, index: u64, durations: &ResponseDurations) {
        self.responses.add(index, durations);
    }

    fn batch(&self, rows: u64, times: &Times) {
        self.batch_on(0, rows, times);
    }
}

/// A number of events and their total time.
#[derive(Debug, Default)]
struct Sum {
    count: AtomicU64,
    ns: AtomicU64,
}

impl Sum {
    fn add(&self, ns: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.ns.fetch_add(ns, Ordering::Relaxed);
    }

    fn duration(&self) -> Duration {
        Duration { count: self.count.load(Ordering::Relaxed), ns: self.ns.load(Ordering::Relaxed) }
    }
}

/// The three parts of an execution: input, infer, output.
#[derive(Debug, Default)]
struct Phases([Sum; 3]);

impl Phases {
    fn add(&self, times: &Times) {
        self.0.iter().zip(phases_of(times)).for_each(|(sum, ns)| sum.add(ns));
    }

    fn duration(&self) -> [Duration; 3] {
        self.0.each_ref().map(Sum::duration)
    }
}

fn phases_of(times: &Times) -> [u64; 3] {
    [
        times.input_end.saturating_sub(times.start),
        times.infer_end.saturating_sub(times.input_end),
        times.end.saturating_sub(times.infer_end),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latencies::LatencyMetrics;

    fn stats(load_ns: u64, rows_max: usize) -> Stats {
        Stats::new("m", 1, load_ns, rows_max, Latencies::new(&LatencyMetrics::default(), false, &[]))
    }

    #[test]
    fn success_counts_rows_and_failure_counts_its_reason() {
        let stats = stats(5, 4);
        let times = Times { start: 20, input_end: 30, infer_end: 60, end: 65 };
        stats.batch(4, &times);
        stats.request(&RequestTimes { arrived: 10, rows: 4, times, device: 0 }, Outcome::Success);
        stats.request(&RequestTimes { arrived: 10, rows: 1, times, device: 0 }, Outcome::Cancelled);
        stats.request(&RequestTimes { arrived: 10, rows: 1, times, device: 0 }, Outcome::FailedElsewhere);
        let report = stats.report(2);
        assert_eq!((report.inference_count, report.execution_count, report.pending), (4, 1, 2));
        assert_eq!((report.queue.ns, report.compute_infer.ns, report.compute_output.ns), (10, 30, 5));
        assert_eq!((report.success.count, report.fail.count, report.failures), (1, 2, [0, 1, 0, 1]));
        assert_eq!(report.batches[0].batch_size, 4);
        assert_eq!((report.name.as_str(), report.version, report.load_ns), ("m", 1, 5));
    }

    #[test]
    fn the_date_of_the_last_batch_is_read_once_in_a_millisecond() {
        let stats = stats(0, 4);
        let ends = |end| stats.batch(1, &Times { end, ..Times::default() });
        ends(1_000_000);
        let first = stats.last_inference_ms.swap(7, Ordering::Relaxed);
        assert!(first > 7);
        ends(1_999_999);
        assert_eq!(stats.report(0).last_inference_ms, 7);
        ends(2_000_000);
        assert!(stats.report(0).last_inference_ms >= first);
        // Without times it is read each time.
        ends(0);
        stats.last_inference_ms.store(7, Ordering::Relaxed);
        ends(0);
        assert!(stats.report(0).last_inference_ms >= first);
    }

    #[test]
    fn what_devices_do_is_counted_for_each_and_for_all() {
        let stats = stats(0, 4).with_devices(2);
        let times = Times { start: 20, input_end: 30, infer_end: 60, end: 65 };
        for (device, outcome) in
            [(1, Outcome::Success), (2, Outcome::Success), (2, Outcome::Failed), (0, Outcome::Rejected)]
        {
            stats.request(&RequestTimes { arrived: 10, rows: 3, times, device }, outcome);
        }
        stats.batch_on(1, 3, &times);
        stats.batch_on(2, 3, &times);
        let report = stats.report(0);
        let duration = |report: &StatisticsReport| {
            (report.inference_count, report.execution_count, report.success.count, report.failures)
        };
        assert_eq!(duration(&report), (6, 2, 2, [1, 0, 1, 0]));
        let each: Vec<_> = report.by_device.iter().map(duration).collect();
        assert_eq!(each, [(0, 0, 0, [1, 0, 0, 0]), (3, 1, 1, [0; 4]), (3, 1, 1, [0, 0, 1, 0])]);
        assert_eq!((report.compute_infer.ns, report.by_device[1].compute_infer.ns), (60, 30));
    }

    #[test]
    fn latencies_are_measured_for_each_device() {
        let metrics = LatencyMetrics { quantiles: Some(vec![0.5]), first_response: true };
        let stats = Stats::new("m", 1, 0, 1, Latencies::new(&metrics, false, &[1.0])).with_devices(2);
        let times = Times { start: 20_000, input_end: 20_000, infer_end: 20_000, end: 27_000 };
        for device in [1, 2, 2] {
            stats.first_response(10_000, device);
            stats.request(&RequestTimes { arrived: 10_000, rows: 1, times, device }, Outcome::Success);
        }
        let counts = |report: &LatencyReport| {
            let queue = report.summaries.iter().find(|(of, _)| *of == Latency::Queue);
            (queue.map(|(_, summary)| summary.count), report.first_response.as_ref().map(|buckets| buckets.count))
        };
        let each: Vec<_> = stats.latencies().iter().map(counts).collect();
        assert_eq!(each, [(Some(0), Some(0)), (Some(1), Some(1)), (Some(2), Some(2))]);
    }

    #[test]
    fn a_response_from_the_cache_counts_as_a_success_without_a_run() {
        let metrics = LatencyMetrics { quantiles: Some(vec![0.5]), first_response: true };
        let stats = Stats::new("m", 1, 0, 1, Latencies::new(&metrics, true, &[1.0]));
        let times = Times { start: 20_000, input_end: 20_000, infer_end: 20_000, end: 27_000 };
        stats.request(&RequestTimes { arrived: 10_000, rows: 4, times, device: 0 }, Outcome::FromCache);
        stats.cache_missed(9_000);
        let report = stats.report(0);
        assert_eq!(
            (report.success.count, report.queue.ns, report.cache_hit.ns, report.cache_miss.ns),
            (1, 10_000, 7_000, 9_000)
        );
        assert_eq!((report.inference_count, report.execution_count, report.compute_infer.count), (0, 0, 0));
        let of = |latency| {
            let latencies = stats.latencies();
            latencies[0]
                .summaries
                .iter()
                .find(|(of, _)| *of == latency)
                .map(|(_, summary)| (summary.count, summary.sum_us))
        };
        assert_eq!((of(Latency::Queue), of(Latency::CacheHit)), (Some((1, 10)), Some((1, 7))));
        assert_eq!((of(Latency::CacheMiss), of(Latency::Request)), (Some((1, 9)), None));
    }

    #[test]
    fn every_size_of_a_batch_is_counted_apart_whatever_the_configuration_says() {
        let stats = stats(0, 2);
        let times = Times { start: 0, input_end: 1, infer_end: 3, end: 6 };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..300).for_each(|run| stats.batch([9, 1, 2][run % 3], &times)));
            }
        });
        let report = stats.report(0);
        let duration: Vec<_> =
            report.batches.iter().map(|batch| (batch.batch_size, batch.compute_infer.count)).collect();
        assert_eq!((duration, report.execution_count), (vec![(1, 400), (2, 400), (9, 400)], 1200));
        assert_eq!(report.batches[2].compute_output.ns, 1200);
    }
}
