//! How does a request end with an error that its own runtime did not cause?

use nerite_request::{Code, Response, Status};

use super::Responder;
use crate::response_times::ResponseOutcome;
use crate::{Outcome, Times};

impl Responder {
    /// Ends the request with an error that is the model's own answer. The request ran, so it counts as a success, as in
    /// Triton.
    pub fn answer_error(self, error: Status, times: Times) {
        self.end_in_error(error, Outcome::Success, times);
    }

    /// Ends the request with the error of another model, which its own model had asked.
    pub fn fail_elsewhere(self, error: Status, times: Times) {
        let is_cancelled = error.code == Code::Cancelled;
        self.end_in_error(error, if is_cancelled { Outcome::Cancelled } else { Outcome::FailedElsewhere }, times);
    }

    fn end_in_error(mut self, error: Status, outcome: Outcome, times: Times) {
        let (error, outcome) = match self.check_memory() {
            Ok(()) if self.cancel.has_timed_out() => (self.explained(error), Outcome::Cancelled),
            Ok(()) => (error, outcome),
            Err(lost) => (lost, Outcome::Failed),
        };
        self.note(times, outcome);
        self.note_response(ResponseOutcome::Failed);
        self.close(Response::failed(error));
    }
}
