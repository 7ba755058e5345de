//! When does each of a request's responses end, and who records it?

use super::Responder;
use crate::now_ns;
use crate::response_times::{ResponseClock, ResponseOutcome};

impl Responder {
    /// Reports each response to the meter from now on. The model began to work for the next response at `since`, in ns of [`now_ns`]. This is for
    /// models that may answer many times. A compiled backend reports its responses itself.
    pub fn count_responses(&mut self, since: u64) {
        match &mut self.clock {
            Some(clock) => clock.starts_again(since),
            None => self.clock = Some(ResponseClock::starting(since)),
        }
    }

    /// Notes that the model's own work for the next response is done now.
    pub fn output_starts(&mut self) {
        if let Some(clock) = &mut self.clock {
            clock.output_starts(now_ns());
        }
    }

    /// The outcome of the response that is being made, if it is no error.
    pub(super) fn made_outcome(&self) -> ResponseOutcome {
        if self.made.outputs.is_empty() { ResponseOutcome::Empty } else { ResponseOutcome::Success }
    }

    /// Reports a response to the meter, before it is sent.
    pub(super) fn note_response(&mut self, outcome: ResponseOutcome) {
        let (Some(clock), Some(in_flight)) = (&mut self.clock, &self.in_flight) else { return };
        let (index, times) = clock.ends(now_ns());
        if let Ok(durations) = times.durations(outcome) {
            in_flight.meter().response(index, &durations);
        }
    }
}
