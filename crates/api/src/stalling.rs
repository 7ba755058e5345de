//! Which requests must not touch memory of clients on a thread that serves connections?
//!
//! The requests of a peer whose requests made threads wait lately ([`nerite_watchdog::Flow::is_stalling`]). A client can cause such a wait: while it punches
//! a hole into a file in memory, a thread that touches a page of the hole waits until the whole hole is punched. Work of these requests with the client's
//! memory is done on stalling workers, at most one at a time for each peer:
//!
//! ```text
//!   front thread ──► stalling worker: check, copy inputs ──► the model, on private memory ──► stalling worker: copy outputs ──► the answer
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use nerite_request::InferRequest;

use crate::Api;
use crate::aside::{Aside, aside, on_stalling_worker, unless_shed};

/// Requests that were run on private copies, because their peers' requests made threads wait.
pub(crate) static STAGED_REQUESTS: AtomicU64 = AtomicU64::new(0);

/// How many requests were run on private copies so far.
pub(crate) fn staged_requests() -> u64 {
    STAGED_REQUESTS.load(Ordering::Relaxed)
}

impl Api {
    /// Whether a thread that serves connections may check and begin this request. If not, do both in [`Api::begin_aside`].
    pub fn may_begin_here(&self, infer_request: &InferRequest) -> bool {
        infer_request.is_light() && !(self.is_stalling() && infer_request.names_memory())
    }

    /// Checks or begins a request on a thread that serves no connection.
    pub fn begin_aside<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Aside<T> {
        if !self.is_stalling() {
            return aside(self.account(), work);
        }
        let done = on_stalling_worker(self.flow(), unless_shed(self.account(), work));
        Box::pin(async move { done.await? })
    }

    /// Whether requests of the client made threads wait lately. This is one relaxed load for those that never did.
    pub(crate) fn is_stalling(&self) -> bool {
        self.flow().is_stalling()
    }
}
