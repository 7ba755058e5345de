//! How is a request reported to the meter if its runtime knows its times only after the answer?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{ModelVersion, Outcome, RequestTimes, Times};

/// The right to report a success to the meter, once, at any time. The responder itself reports failures.
pub struct EndNote {
    pub(crate) version: Arc<ModelVersion>,
    pub(crate) arrived: u64,
    pub(crate) rows: u32,
    pub(crate) device: u8,
    /// Whether the responder reported a failure.
    pub(crate) is_noted: Arc<AtomicBool>,
}

impl EndNote {
    /// Reports the times and the outcome of the request, unless a failure was reported already.
    pub fn note(self, times: Times, outcome: Outcome) {
        if !self.is_noted.swap(true, Ordering::AcqRel) {
            let EndNote { arrived, rows, device, .. } = self;
            let request = RequestTimes { arrived, rows, times, device };
            self.version.meter().request(&request, outcome);
        }
    }
}
