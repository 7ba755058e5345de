//! How long did each part of an execution take, and who records it?

pub use nerite_watchdog::now_ns;

use crate::response_times::ResponseDurations;

/// The four moments of an execution as Triton's statistics divide it, in ns of [`now_ns`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The runtime took the batch.
    pub start: u64,
    /// The inputs were ready.
    pub input_end: u64,
    /// The model's own work was done.
    pub infer_end: u64,
    /// The outputs were where they belong.
    pub end: u64,
}

impl Times {
    /// Sets all four moments to now. Later calls move the later ones.
    pub fn begin() -> Times {
        let now = now_ns();
        Times { start: now, input_end: now, infer_end: now, end: now }
    }

    /// The inputs are ready.
    pub fn input_ends(&mut self) {
        let now = now_ns();
        (self.input_end, self.infer_end, self.end) = (now, now, now);
    }

    /// The model's own work is done.
    pub fn infer_ends(&mut self) {
        let now = now_ns();
        (self.infer_end, self.end) = (now, now);
    }

    /// The outputs are in place.
    pub fn ends(&mut self) {
        self.end = now_ns();
    }
}

/// One request's way through the server.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestTimes {
    /// It was admitted, in ns of [`now_ns`].
    pub arrived: u64,
    /// Rows in it.
    pub rows: u32,
    /// The execution it was part of.
    pub times: Times,
    /// The device of that execution, as a number of the model's own ([`crate::Job::runs_on`]); 0 if it was on none of these.
    pub device: u8,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With a result.
    Success,
    /// With a result that was kept from an earlier request.
    FromCache,
    /// The runtime failed.
    Failed,
    /// The client went away first, or the request's time was over before the run ended.
    Cancelled,
    /// It waited too long.
    Rejected,
}

/// Records executions. It is called before the answer is sent, so a client that asks for statistics next finds its own
/// request in them.
pub trait Meter: Send + Sync {
    /// A request ended.
    fn request(&self, times: &RequestTimes, outcome: Outcome);
    /// The first response of a request that was admitted at `arrived` is about to be sent, and is no error. `device` is that of
    /// [`RequestTimes`].
    fn first_response(&self, _arrived: u64, _device: u8) {}
    /// A response of a model that may answer many times ended. `index` is its position in its request, from 0.
    fn response(&self, _index: u64, _durations: &ResponseDurations) {}
    /// The runtime executed a batch of `rows`.
    fn batch(&self, rows: u64, times: &Times);
}

/// Records nothing; for tests.
pub struct NoMeter;

impl Meter for NoMeter {
    fn request(&self, _: &RequestTimes, _: Outcome) {}
    fn batch(&self, _: u64, _: &Times) {}
}
