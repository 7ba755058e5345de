//! How many inferences are under way, and is one more accepted?

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nerite_request::{Counted, Status};

use crate::Api;

/// The text of Triton's schedulers when the server is stopping. Clients match on it.
const STOPPING: &str = "Server is stopping, scheduler for model has stopped accepting new inference requests";

/// Counts an inference that the server has accepted, until it is dropped.
#[derive(Debug)]
pub struct UnderWay(pub(crate) Counted);

impl UnderWay {
    pub(crate) fn count(all: &Arc<AtomicUsize>) -> UnderWay {
        UnderWay(Counted::one(all))
    }

    /// Counts the same inference once more, for work on another thread that may outlive the call.
    #[must_use]
    pub fn again(&self) -> UnderWay {
        UnderWay(self.0.again())
    }
}

impl Api {
    /// Makes the server say that it is not ready. Everything is served as before.
    pub fn begin_draining(&self) {
        self.inner.draining.store(true, Ordering::Release);
    }

    /// Begins the stop of the server. The server is not ready any more, and completes only requests that are under way. Requests that wait for a model to be
    /// loaded are refused, and loads end.
    pub fn begin_stopping(&self) {
        self.inner.stopping.store(true, Ordering::Release);
        self.inner.engine.refuse_waiting(&Status::unavailable(STOPPING));
        self.inner.engine.end_loads();
    }

    /// Whether an inference that begins to arrive may be accepted when it is complete. Err when the server stops: the client need not send the rest.
    pub fn check_accepting(&self) -> Result<(), Status> {
        if self.stopping() { Err(Status::unavailable(STOPPING)) } else { Ok(()) }
    }

    /// Accepts one more inference. Call this when it has arrived completely. Accepted inferences are answered, even if the server is told to stop
    /// meanwhile. Err when the server stops.
    pub fn accept_inference(&self) -> Result<UnderWay, Status> {
        // The inference is counted before the check. So either the stopping thread sees the count, or this check sees the stop.
        let under_way = UnderWay::count(&self.inner.under_way);
        self.check_accepting().map(|()| under_way)
    }

    /// The number of inferences whose last response has not been made.
    pub fn under_way(&self) -> usize {
        self.inner.under_way.load(Ordering::Acquire)
    }
}
