//! What is known of the requests of a window?

use std::sync::Mutex;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::lock;
use crate::wire::Times;

/// Significant digits of latencies.
const DIGITS: u8 = 3;
/// Records that workers take turns with, so that two of them seldom want the same.
const SHARDS: usize = 16;

/// The requests that ended in a window.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) latencies: Histogram<u64>,
    pub(crate) requests: u64,
    pub(crate) responses: u64,
    pub(crate) sum_ns: f64,
    pub(crate) squares_ns: f64,
    pub(crate) send_ns: f64,
    pub(crate) wait_ns: f64,
    pub(crate) receive_ns: f64,
    pub(crate) late: u64,
    /// Sequences that ended.
    pub(crate) sequences: u64,
    /// Each request, where all are kept.
    pub(crate) each: Vec<Each>,
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Each {
    pub(crate) start: Instant,
    pub(crate) sequence: u64,
    pub(crate) responses: Vec<Instant>,
}

impl Default for Record {
    fn default() -> Record {
        // The number of digits is one of those that are allowed.
        let latencies = Histogram::new(DIGITS).unwrap_or_else(|_| unreachable!("{DIGITS} digits"));
        Record {
            latencies,
            requests: 0,
            responses: 0,
            sum_ns: 0.0,
            squares_ns: 0.0,
            send_ns: 0.0,
            wait_ns: 0.0,
            receive_ns: 0.0,
            late: 0,
            sequences: 0,
            each: Vec::new(),
        }
    }
}

impl Record {
    /// Adds one exchange, whose request was due at `due`.
    pub(super) fn add(&mut self, due: Instant, times: &Times, is_late: bool) {
        let latency = (times.end - due).as_nanos() as u64;
        let ns = |time: Duration| time.as_nanos() as f64;
        let count = u64::from(times.requests);
        // The histogram grows as needed, so this cannot fail.
        let _ = self.latencies.record_n(latency.max(1), count);
        self.requests += count;
        self.responses += u64::from(times.responses);
        let each = count as f64;
        self.sum_ns += latency as f64 * each;
        self.squares_ns += (latency as f64).powi(2) * each;
        self.send_ns += ns(times.sent - times.start) * each;
        self.wait_ns += ns(times.first.saturating_duration_since(times.sent)) * each;
        self.receive_ns += ns(times.end - times.first) * each;
        self.late += u64::from(is_late);
    }

    /// Adds the requests of another window.
    pub(crate) fn join(&mut self, other: &Record) {
        // Both histograms grow as needed, so this cannot fail.
        let _ = self.latencies.add(&other.latencies);
        self.requests += other.requests;
        self.responses += other.responses;
        self.sum_ns += other.sum_ns;
        self.squares_ns += other.squares_ns;
        self.send_ns += other.send_ns;
        self.wait_ns += other.wait_ns;
        self.receive_ns += other.receive_ns;
        self.late += other.late;
        self.sequences += other.sequences;
        self.each.extend_from_slice(&other.each);
    }
}

/// The records of all workers.
#[derive(Debug, Default)]
pub(super) struct Records([Mutex<Record>; SHARDS]);

impl Records {
    /// The record of this worker.
    pub(super) fn of(&self, worker: usize) -> &Mutex<Record> {
        &self.0[worker % SHARDS]
    }

    pub(super) fn take(&self) -> Record {
        let mut all = Record::default();
        for record in &self.0 {
            let taken = std::mem::take(&mut *lock(record));
            all.join(&taken);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_begins_when_a_request_was_due() {
        let start = Instant::now();
        let at = |us| start + Duration::from_micros(us);
        let times = Times { start: at(10), sent: at(12), first: at(30), end: at(40), requests: 1, responses: 1 };
        let mut record = Record::default();
        record.add(start, &times, true);
        assert_eq!((record.requests, record.late, record.sum_ns), (1, 1, 40_000.0));
        assert_eq!((record.send_ns, record.wait_ns, record.receive_ns), (2_000.0, 18_000.0, 10_000.0));
        let mut both = record.clone();
        both.join(&record);
        assert_eq!((both.requests, both.latencies.len()), (2, 2));
    }
}
