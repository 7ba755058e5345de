//! Which inferences are under way, and is one more taken?

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nerite_request::Status;

use crate::Api;

/// What Triton's schedulers say once the server was told to stop; clients know it.
const STOPPING: &str = "Server is stopping, scheduler for model has stopped accepting new inference requests";

/// An inference that the server has taken on, counted while this lives.
#[derive(Debug)]
pub struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    pub(crate) fn count(all: &Arc<AtomicUsize>) -> UnderWay {
        all.fetch_add(1, Ordering::AcqRel);
        UnderWay(Arc::clone(all))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Api {
    /// Whether an inference that begins to arrive may be taken on once it is complete. Err when the server stops: then nobody need
    /// send the rest.
    pub fn check_taking_on(&self) -> Result<(), Status> {
        if self.stopping() { Err(Status::unavailable(STOPPING)) } else { Ok(()) }
    }

    /// Takes on one more inference, to be asked when all of it has arrived: what was taken on is answered, whatever the server
    /// is told meanwhile. Err when the server stops.
    pub fn take_on(&self) -> Result<UnderWay, Status> {
        // Counted first, so that a stop either sees it or is seen.
        let under_way = UnderWay::count(&self.0.under_way);
        self.check_taking_on().map(|()| under_way)
    }

    /// Inferences whose last response has not been made.
    pub fn under_way(&self) -> usize {
        self.0.under_way.load(Ordering::Acquire)
    }
}
