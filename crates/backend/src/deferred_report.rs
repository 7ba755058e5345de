//! How is a request reported to the meter if its runtime knows its times only after the answer?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::{ModelVersion, Outcome, RequestTimes, Times};

/// The right to report a success to the meter, once, at any time. The responder itself reports a failure.
pub struct DeferredReport {
    pub(crate) version: Arc<ModelVersion>,
    pub(crate) arrived: u64,
    pub(crate) rows: u32,
    pub(crate) device: u8,
    pub(crate) noted: Arc<Noted>,
}

impl DeferredReport {
    /// Reports the times and the outcome of the request, unless a failure was reported already.
    pub fn note(self, times: Times, outcome: Outcome) {
        if self.noted.is_first(outcome) {
            let DeferredReport { arrived, rows, device, .. } = self;
            let request = RequestTimes { arrived, rows, times, device };
            self.version.meter().request(&request, outcome);
        }
    }
}

/// The outcome that was reported to the meter for a request with a [`DeferredReport`].
#[derive(Debug, Default)]
pub struct Noted {
    is_apart: AtomicBool,
    outcome: AtomicU8,
}

const NOTHING: u8 = 0;
const SUCCESS: u8 = 1;
const OTHER: u8 = 2;

impl Noted {
    /// Whether a success was reported.
    pub fn is_success(&self) -> bool {
        self.outcome.load(Ordering::Acquire) == SUCCESS
    }

    /// Whether a [`DeferredReport`] reports successes.
    pub(crate) fn is_apart(&self) -> bool {
        self.is_apart.load(Ordering::Acquire)
    }

    /// Lets a [`DeferredReport`] report successes. Returns false if there is one already.
    pub(crate) fn set_apart(&self) -> bool {
        !self.is_apart.swap(true, Ordering::AcqRel)
    }

    /// Stores the outcome that is reported. Returns false if one was reported before.
    pub(crate) fn is_first(&self, outcome: Outcome) -> bool {
        let outcome = if outcome == Outcome::Success { SUCCESS } else { OTHER };
        self.outcome.compare_exchange(NOTHING, outcome, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}
