//! What runs the calls of a program that has no async runtime?

use std::future::Future;
use std::sync::OnceLock;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::Error;

/// One runtime for the whole program, with its own thread for work between calls.
static RUNTIME: OnceLock<Runtime> = OnceLock::new();

/// Waits for a call of this crate, such as one of a [`Session`](crate::Session), in a program without an async runtime. Within a runtime this returns
/// [`Error::Blocking`], because waiting would block other tasks.
///
/// ```no_run
/// use nerite_client::{Session, blocking, default_path};
///
/// # fn call() -> Result<(), nerite_client::Error> {
/// let session = blocking::wait(Session::connect(default_path()))?;
/// let lease = blocking::wait(session.borrow(4096))?;
/// # Ok(()) }
/// ```
pub fn wait<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    if Handle::try_current().is_ok() {
        return Err(Error::Blocking("the thread runs tasks of a tokio runtime; await the call there".to_owned()));
    }
    runtime()?.block_on(call)
}

/// Calls `make` in the context of the runtime, in which connections can be made.
pub(crate) fn within<T>(make: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let _context = runtime()?.enter();
    make()
}

/// A runtime for work in the background: that of this thread, or that of blocking calls if there were any.
pub(crate) fn background() -> Option<Handle> {
    Handle::try_current().ok().or_else(|| RUNTIME.get().map(|runtime| runtime.handle().clone()))
}

fn runtime() -> Result<&'static Runtime, Error> {
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let made = Builder::new_multi_thread().worker_threads(1).thread_name("nerite-client").enable_all().build();
    let made = made.map_err(|error| Error::Blocking(format!("its thread cannot be started: {error}")))?;
    // If two threads make a runtime at the same time, one of the two is dropped unused.
    Ok(RUNTIME.get_or_init(|| made))
}
