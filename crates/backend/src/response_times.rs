//! How long did one response of a request take, and how did it end?
//!
//! Triton's statistics of decoupled models, `response_stats`, are sums of these. A compiled backend reports the times itself. For other models the server takes
//! them when it sends a response ([`crate::Responder::count_responses`]).

use nerite_request::Status;

/// How a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseOutcome {
    /// With outputs.
    Success,
    /// With an error.
    Failed,
    /// Without outputs, because the model only reports that nothing follows.
    Empty,
    /// It was not sent, because the client had gone.
    Cancelled,
}

/// The points in time of a response, in ns of one clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseTimes {
    /// When the model began to work for it.
    pub start: u64,
    /// When the model's own work was done. `None` if there were no outputs.
    pub output_start: Option<u64>,
    /// When the response was ready.
    pub end: u64,
}

/// The times and the outcome of a response, for statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseDurations {
    /// How it ended.
    pub outcome: ResponseOutcome,
    /// The time from its start to its outputs. `None` if statistics do not count it.
    pub infer_ns: Option<u64>,
    /// The time from its outputs to its end. `None` if statistics do not count it.
    pub output_ns: Option<u64>,
    /// The time from its start to its end.
    pub total_ns: u64,
}

impl ResponseTimes {
    /// The durations that statistics count, as in Triton 2.51. If the times are not in order, the error has Triton's text.
    pub fn durations(&self, outcome: ResponseOutcome) -> Result<ResponseDurations, Status> {
        let ResponseTimes { start, output_start, end } = *self;
        let between = |from: u64, to: u64, text: &str| to.checked_sub(from).ok_or_else(|| Status::invalid(text));
        let outputs = |since: u64| {
            let infer_ns = between(start, since, "Response start cannot happen after compute output start")?;
            let output_ns = between(since, end, "Compute output start cannot happen after response end")?;
            Ok::<_, Status>((Some(infer_ns), Some(output_ns)))
        };
        let (infer_ns, output_ns) = match (outcome, output_start) {
            (ResponseOutcome::Success, since) => outputs(since.unwrap_or(end))?,
            // Outputs that took no time do not count.
            (ResponseOutcome::Failed, Some(since)) => {
                outputs(since).map(|(infer_ns, output_ns)| (infer_ns, output_ns.filter(|ns| *ns > 0)))?
            }
            (ResponseOutcome::Failed, None) | (ResponseOutcome::Empty, _) => (Some(end.saturating_sub(start)), None),
            (ResponseOutcome::Cancelled, _) => (None, None),
        };
        let total_ns = between(start, end, "Response start cannot happen after response end")?;
        Ok(ResponseDurations { outcome, infer_ns, output_ns, total_ns })
    }
}

/// Measures the responses of a request. Each response begins when the one before it ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseClock {
    index: u64,
    start: u64,
    output_start: Option<u64>,
}

impl ResponseClock {
    /// A clock whose first response begins at `start`.
    pub(crate) fn starting(start: u64) -> ResponseClock {
        ResponseClock { index: 0, start, output_start: None }
    }

    /// Lets the next response begin at `start`, because the request runs again.
    pub(crate) fn starts_again(&mut self, start: u64) {
        (self.start, self.output_start) = (start, None);
    }

    /// Notes that the model's own work for this response was done at `now`.
    pub(crate) fn output_starts(&mut self, now: u64) {
        self.output_start = Some(now);
    }

    /// This response ended at `now`. Returns its position in the request, and its times.
    pub(crate) fn ends(&mut self, now: u64) -> (u64, ResponseTimes) {
        let start = self.start.min(now);
        let output_start = self.output_start.map(|since| since.clamp(start, now));
        let ended = self.index;
        *self = ResponseClock { index: ended.saturating_add(1), start: now, output_start: None };
        (ended, ResponseTimes { start, output_start, end: now })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(
        [start, output_start, end]: [u64; 3],
        outcome: ResponseOutcome,
        expect: Result<(Option<u64>, Option<u64>, u64), &str>,
    ) {
        let times = ResponseTimes { start, output_start: Some(output_start).filter(|ns| *ns > 0), end };
        let found = times.durations(outcome).map(|found| (found.infer_ns, found.output_ns, found.total_ns));
        assert_eq!(found.map_err(|status| status.message), expect.map_err(str::to_owned));
    }

    /// The cases of Triton's `InferenceStatsAggregator`. The times are start, start of outputs and end. A 0 means that there was no start of outputs.
    #[test]
    fn each_outcome_counts_its_own_durations() {
        use ResponseOutcome::{Cancelled, Empty, Failed, Success};
        check([10, 17, 19], Success, Ok((Some(7), Some(2), 9)));
        check([10, 10, 10], Success, Ok((Some(0), Some(0), 0)));
        check([10, 0, 19], Success, Ok((Some(9), Some(0), 9)));
        check([10, 17, 19], Failed, Ok((Some(7), Some(2), 9)));
        check([10, 19, 19], Failed, Ok((Some(9), None, 9)));
        check([10, 0, 19], Failed, Ok((Some(9), None, 9)));
        check([10, 0, 19], Empty, Ok((Some(9), None, 9)));
        check([10, 17, 19], Empty, Ok((Some(9), None, 9)));
        check([10, 0, 19], Cancelled, Ok((None, None, 9)));
        let (late_start, late_output) = (
            Err("Response start cannot happen after compute output start"),
            Err("Compute output start cannot happen after response end"),
        );
        check([18, 17, 19], Success, late_start);
        check([10, 20, 19], Success, late_output);
        check([18, 17, 19], Failed, late_start);
        check([10, 20, 19], Failed, late_output);
        for outcome in [Failed, Empty, Cancelled] {
            check([20, 0, 19], outcome, Err("Response start cannot happen after response end"));
        }
    }

    #[test]
    fn each_response_begins_where_the_one_before_it_ended() {
        let times = |start, output_start, end| ResponseTimes { start, output_start, end };
        let mut clock = ResponseClock::starting(10);
        clock.output_starts(15);
        assert_eq!(clock.ends(19), (0, times(10, Some(15), 19)));
        assert_eq!(clock.ends(30), (1, times(19, None, 30)));
        clock.starts_again(50);
        clock.output_starts(40);
        assert_eq!(clock.ends(60), (2, times(50, Some(50), 60)));
        // The clock of another thread may be ahead.
        clock.starts_again(90);
        assert_eq!(clock.ends(80), (3, times(80, None, 80)));
    }
}
