//! How often did a model version run, and how long did it take?

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use nerite_backend::{Meter, Outcome, RequestTimes, Times, now_ns};
use nerite_request::report::{BatchReport, StatisticsReport};

/// The statistics of one model version, written by executions and read by clients.
#[derive(Debug, Default)]
pub struct Stats(Mutex<StatisticsReport>, Mutex<BTreeMap<u64, BatchReport>>);

/// Positions in [`StatisticsReport::failures`].
const REJECTED: usize = 0;
const CANCELLED: usize = 1;
const BACKEND: usize = 2;

impl Stats {
    /// Statistics of a version that took `load_ns` to load.
    pub fn new(name: &str, version: i64, load_ns: u64) -> Stats {
        let report = StatisticsReport { name: name.to_owned(), version, load_ns, ..StatisticsReport::default() };
        Stats(Mutex::new(report), Mutex::default())
    }

    /// What a client may see of them now; `pending` requests wait.
    pub fn report(&self, pending: u64) -> StatisticsReport {
        let report = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let batches = self.1.lock().unwrap_or_else(PoisonError::into_inner).values().copied().collect();
        StatisticsReport { batches, pending, ..report }
    }
}

impl Meter for Stats {
    fn request(&self, request: &RequestTimes, outcome: Outcome) {
        let RequestTimes { arrived, rows, times } = *request;
        let total = now_ns().saturating_sub(arrived);
        let mut report = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Outcome::Success => {
                report.success.add(total);
                report.queue.add(times.start.saturating_sub(arrived));
                report.compute_input.add(times.input_end.saturating_sub(times.start));
                report.compute_infer.add(times.infer_end.saturating_sub(times.input_end));
                report.compute_output.add(times.end.saturating_sub(times.infer_end));
                report.inference_count += u64::from(rows.max(1));
            }
            Outcome::Failed => fail(&mut report, BACKEND, total),
            Outcome::Cancelled => fail(&mut report, CANCELLED, total),
            Outcome::Rejected => fail(&mut report, REJECTED, total),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "statistics tell the date of the last inference")]
    fn batch(&self, rows: u64, times: &Times) {
        let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64);
        {
            let mut report = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            report.execution_count += 1;
            report.last_inference_ms = unix_ms;
        }
        let mut batches = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = batches.entry(rows).or_insert(BatchReport { batch_size: rows, ..BatchReport::default() });
        entry.compute_input.add(times.input_end.saturating_sub(times.start));
        entry.compute_infer.add(times.infer_end.saturating_sub(times.input_end));
        entry.compute_output.add(times.end.saturating_sub(times.infer_end));
    }
}

fn fail(report: &mut StatisticsReport, reason: usize, total: u64) {
    report.fail.add(total);
    if let Some(count) = report.failures.get_mut(reason) {
        *count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_counts_rows_and_failure_counts_its_reason() {
        let stats = Stats::new("m", 1, 5);
        let times = Times { start: 20, input_end: 30, infer_end: 60, end: 65 };
        stats.batch(4, &times);
        stats.request(&RequestTimes { arrived: 10, rows: 4, times }, Outcome::Success);
        stats.request(&RequestTimes { arrived: 10, rows: 1, times }, Outcome::Cancelled);
        let report = stats.report(2);
        assert_eq!((report.inference_count, report.execution_count, report.pending), (4, 1, 2));
        assert_eq!((report.queue.ns, report.compute_infer.ns, report.compute_output.ns), (10, 30, 5));
        assert_eq!((report.success.count, report.fail.count, report.failures), (1, 1, [0, 1, 0, 0]));
        assert_eq!(report.batches[0].batch_size, 4);
    }
}
