//! How is an instance asked whether it can take a request now?
//!
//! The instance itself may be running and cannot be called. It provides a [`Readiness`], which any thread may call meanwhile.

use std::sync::Arc;

use nerite_request::Status;

/// Called with the answer: `Ok` if the instance can take a request, else the reason why it cannot.
pub type ReadinessDone = Box<dyn FnOnce(Result<(), Status>) + Send>;

/// Reports whether one instance is ready. For instances that may not be: their process may have died, or their model decides.
pub trait Readiness: Send + Sync {
    /// Finds out, and calls `done` once: on this thread before it returns, or on another one later. Does not wait. It
    /// is not called again before it has answered.
    fn check(self: Arc<Self>, done: ReadinessDone);

    /// The reason why the instance cannot take requests, as far as it is known without asking.
    fn fault(&self) -> Option<Status>;
}
