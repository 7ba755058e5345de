//! How often was each response of a request sent, the first, the second and so on, and how long did it take?
//!
//! Triton keeps such sums for every position that any request ever reached. So a model that answers a request a million
//! times leaves a million of them, in the server's memory and in each answer about statistics. Here the positions are
//! bounded, and later responses are not counted.

use std::sync::OnceLock;

use nerite_backend::{ResponseDurations, ResponseOutcome};
use nerite_request::report::ResponseReport;

use super::Sum;
use crate::limits::RESPONSE_INDICES_MAX;

/// The sums of each position. They are allocated with the first response.
#[derive(Debug, Default)]
pub(super) struct ResponseStats(OnceLock<Box<[ResponseSums]>>);

#[derive(Debug, Default)]
struct ResponseSums {
    compute_infer: Sum,
    compute_output: Sum,
    success: Sum,
    fail: Sum,
    empty_response: Sum,
    cancel: Sum,
}

impl ResponseStats {
    /// Counts a response at a position.
    pub(super) fn add(&self, index: u64, durations: &ResponseDurations) {
        if index >= RESPONSE_INDICES_MAX as u64 {
            return;
        }
        let all = self.0.get_or_init(|| (0..RESPONSE_INDICES_MAX).map(|_| ResponseSums::default()).collect());
        let Some(sums) = all.get(index as usize) else { return };
        if let Some(ns) = durations.infer_ns {
            sums.compute_infer.add(ns);
        }
        if let Some(ns) = durations.output_ns {
            sums.compute_output.add(ns);
        }
        let ended = match durations.outcome {
            ResponseOutcome::Success => &sums.success,
            ResponseOutcome::Failed => &sums.fail,
            ResponseOutcome::Empty => &sums.empty_response,
            ResponseOutcome::Cancelled => &sums.cancel,
        };
        ended.add(durations.total_ns);
    }

    /// The positions at which there was a response.
    pub(super) fn report(&self) -> Vec<ResponseReport> {
        let all = self.0.get().into_iter().flatten().enumerate();
        all.map(|(index, sums)| sums.report(index as u64)).filter(has_any).collect()
    }
}

impl ResponseSums {
    fn report(&self, index: u64) -> ResponseReport {
        ResponseReport {
            index,
            compute_infer: self.compute_infer.duration(),
            compute_output: self.compute_output.duration(),
            success: self.success.duration(),
            fail: self.fail.duration(),
            empty_response: self.empty_response.duration(),
            cancel: self.cancel.duration(),
        }
    }
}

fn has_any(report: &ResponseReport) -> bool {
    [report.success, report.fail, report.empty_response, report.cancel].iter().any(|ended| ended.count > 0)
}

#[cfg(test)]
mod tests {
    use nerite_request::report::Duration;

    use super::*;

    fn durations(outcome: ResponseOutcome, infer_ns: Option<u64>, output_ns: Option<u64>) -> ResponseDurations {
        ResponseDurations { outcome, infer_ns, output_ns, total_ns: infer_ns.unwrap_or(4) + output_ns.unwrap_or(0) }
    }

    #[test]
    fn each_position_has_its_own_sums() {
        use ResponseOutcome::{Cancelled, Empty, Failed, Success};
        let stats = ResponseStats::default();
        assert_eq!(stats.report(), []);
        stats.add(0, &durations(Success, Some(7), Some(2)));
        stats.add(0, &durations(Success, Some(1), Some(1)));
        stats.add(0, &durations(Failed, Some(5), None));
        stats.add(2, &durations(Empty, Some(3), None));
        stats.add(2, &durations(Cancelled, None, None));
        let some = |count, ns| Duration { count, ns };
        let first = ResponseReport {
            index: 0,
            compute_infer: some(3, 13),
            compute_output: some(2, 3),
            success: some(2, 11),
            fail: some(1, 5),
            ..ResponseReport::default()
        };
        let third = ResponseReport {
            index: 2,
            compute_infer: some(1, 3),
            empty_response: some(1, 3),
            cancel: some(1, 4),
            ..ResponseReport::default()
        };
        assert_eq!(stats.report(), [first, third]);
    }

    #[test]
    fn positions_are_bounded() {
        let stats = ResponseStats::default();
        for index in (0..2 * RESPONSE_INDICES_MAX as u64).chain([u64::MAX]) {
            stats.add(index, &durations(ResponseOutcome::Success, Some(1), Some(1)));
        }
        let positions: Vec<_> = stats.report().iter().map(|report| report.index).collect();
        assert!(positions.into_iter().eq(0..RESPONSE_INDICES_MAX as u64));
    }
}
