//! How long did each part of an execution take, and who records it?

pub use nerite_watchdog::now_ns;

use crate::response_times::ResponseDurations;

/// Four points in time that divide an execution as Triton's statistics do, in ns of [`now_ns`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// When the runtime took the batch.
    pub start: u64,
    /// When the inputs were ready.
    pub input_end: u64,
    /// When the model's own work was done.
    pub infer_end: u64,
    /// When the outputs were in place.
    pub end: u64,
}

impl Times {
    /// Sets all four times to now. The other functions move the later ones.
    pub fn begin() -> Times {
        let now = now_ns();
        Times { start: now, input_end: now, infer_end: now, end: now }
    }

    /// Marks that the inputs are ready now.
    pub fn mark_input_end(&mut self) {
        let now = now_ns();
        (self.input_end, self.infer_end, self.end) = (now, now, now);
    }

    /// Marks that the model's own work is done now.
    pub fn mark_infer_end(&mut self) {
        let now = now_ns();
        (self.infer_end, self.end) = (now, now);
    }

    /// Marks that the outputs are in place now.
    pub fn mark_end(&mut self) {
        self.end = now_ns();
    }
}

/// The times and the size of one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestTimes {
    /// When it was admitted, in ns of [`now_ns`].
    pub arrived: u64,
    /// The number of its rows.
    pub rows: u32,
    /// The times of the execution that it was part of.
    pub times: Times,
    /// The number of the execution's device among those of the model, from 1 ([`crate::Job::runs_on`]). 0 if the executions of the model are not
    /// counted by device.
    pub device: u8,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has a result.
    Success,
    /// It has a result from the response cache.
    FromCache,
    /// The runtime failed.
    Failed,
    /// A model that its own model asked failed.
    FailedElsewhere,
    /// Before the run ended, the client went away or the request timed out.
    Cancelled,
    /// The request never ran, for example because it waited too long.
    Rejected,
}

/// Records requests and executions. It is called before the answer is sent. So a client that reads statistics after its answer finds its own request
/// in them.
pub trait Meter: Send + Sync {
    /// Records the end of a request.
    fn request(&self, times: &RequestTimes, outcome: Outcome);
    /// Records that the first response without an error is about to be sent, for a request that was admitted at `arrived`. `device` is that of
    /// [`RequestTimes`].
    fn first_response(&self, _arrived: u64, _device: u8) {}
    /// Records one response of a model that may answer many times. `index` is the position of the response among those of its request, from 0.
    fn response(&self, _index: u64, _durations: &ResponseDurations) {}
    /// Records that the runtime executed a batch of `rows` rows.
    fn batch(&self, rows: u64, times: &Times);
}

/// Records nothing; for tests.
pub struct NoMeter;

impl Meter for NoMeter {
    fn request(&self, _: &RequestTimes, _: Outcome) {}
    fn batch(&self, _: u64, _: &Times) {}
}
