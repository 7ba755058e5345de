//! Who tells the meter of a request whose runtime knows its times only after the answer?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{ModelVersion, Outcome, RequestTimes, Times};

/// The right to tell the meter of a success, once, at any time. Failures are told by the responder itself.
pub struct EndNote {
    pub(crate) version: Arc<ModelVersion>,
    pub(crate) arrived: u64,
    pub(crate) rows: u32,
    /// Whether the responder told of a failure.
    pub(crate) is_noted: Arc<AtomicBool>,
}

impl EndNote {
    /// Tells that the request had these times, unless it failed and that was told.
    pub fn note(self, times: Times, outcome: Outcome) {
        if !self.is_noted.swap(true, Ordering::AcqRel) {
            let request = RequestTimes { arrived: self.arrived, rows: self.rows, times };
            self.version.meter().request(&request, outcome);
        }
    }
}
