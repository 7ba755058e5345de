//! How does other code find out whether an instance can take a request now?
//!
//! An instance that is running cannot be called. It provides a [`Readiness`], which any thread may call during a run.

use std::sync::Arc;

use nerite_request::Status;

/// Called with the answer: `Ok` if the instance can take a request, else the reason why it cannot.
pub type ReadinessDone = Box<dyn FnOnce(Result<(), Status>) + Send>;

/// Reports whether one instance is ready. Only instances that may be unready have one: their process may have died, or the model itself decides.
pub trait Readiness: Send + Sync {
    /// Finds out whether the instance is ready, and calls `done` once: on this thread before it returns, or on another one later. Does not wait. The
    /// next check begins only after `done` was called.
    fn check(self: Arc<Self>, done: ReadinessDone);

    /// The reason why the instance cannot take requests, as far as it is known without a check.
    fn fault(&self) -> Option<Status>;

    /// Whether its process has died and the next one is being started, so that requests should go to other instances. Does not wait.
    fn is_down(&self) -> bool {
        false
    }

    /// Sets a function that is called when the result of [`Readiness::is_down`] may have changed. The function may take the locks of the pool that has the
    /// instance.
    fn watch(&self, _changed: Box<dyn Fn() + Send + Sync>) {}

    /// The number of processes that the instance has had, if it runs in a process of its own. The result of a check does not apply to later
    /// processes.
    fn processes(&self) -> u64 {
        0
    }
}
