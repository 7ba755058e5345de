//! What does a backend set for one response before it reports the response?

use std::sync::{MutexGuard, PoisonError};

use nerite_backend::{ResponseOutcome, ResponseTimes};
use nerite_locks::Mutex;
use nerite_request::Code;

use super::{ErrorObject, Factory, InstanceObject, object};
use crate::table::Handle;

/// `TRITONBACKEND_ModelInstanceResponseStatistics`. It may be changed and reported any number of times.
#[derive(Default)]
pub struct ResponseStatistics(Mutex<ReportedResponse>);

object!(ResponseStatistics, 26, "response statistics object");

/// The values that were set. Those that were not set are 0 and NULL.
#[derive(Clone, Copy, Default)]
pub struct ReportedResponse {
    /// The instance that made the response.
    pub instance: Handle<InstanceObject>,
    /// A response factory of the request.
    pub factory: Handle<Factory>,
    /// When the instance began to work for the response.
    pub start: u64,
    /// When it began to write the outputs. 0 if there were none.
    pub output_start: u64,
    /// When the response was ready.
    pub end: u64,
    /// The error of the response, which stays the backend's. NULL for none.
    pub error: Handle<ErrorObject>,
}

impl ResponseStatistics {
    /// The values, to change them.
    pub fn values(&self) -> MutexGuard<'_, ReportedResponse> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReportedResponse {
    /// Its moments.
    pub fn times(&self) -> ResponseTimes {
        let output_start = Some(self.output_start).filter(|ns| *ns > 0);
        ResponseTimes { start: self.start, output_start, end: self.end }
    }

    /// How it ended, as Triton reads it: a response without an error and without outputs is empty. `error` is the kind of its error.
    pub fn outcome(&self, error: Option<Code>) -> ResponseOutcome {
        match error {
            None if self.output_start == 0 => ResponseOutcome::Empty,
            None => ResponseOutcome::Success,
            Some(Code::Cancelled) => ResponseOutcome::Cancelled,
            Some(_) => ResponseOutcome::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_and_the_outputs_say_how_a_response_ended() {
        let rows = [
            (7, None, ResponseOutcome::Success),
            (0, None, ResponseOutcome::Empty),
            (7, Some(Code::Cancelled), ResponseOutcome::Cancelled),
            (0, Some(Code::Cancelled), ResponseOutcome::Cancelled),
            (7, Some(Code::Unavailable), ResponseOutcome::Failed),
            (0, Some(Code::Internal), ResponseOutcome::Failed),
        ];
        for (output_start, error, expect) in rows {
            let values = ReportedResponse { output_start, ..ReportedResponse::default() };
            assert_eq!((values.outcome(error), values.times().output_start.unwrap_or(0)), (expect, output_start));
        }
    }
}
