//! Which session's run divided an integer by zero?
//!
//! ```text
//!  the thread that calls Run ──► own ──────┐
//!                                          ├─► more than before the run: that run has no result
//!  threads of the session's pool ─► pool ──┘
//! ```
//!
//! A session computes on the thread that calls it and on those of its pool. The server starts the pool's threads, so each of them counts divisions
//! for its session ([`nerite_guard::count_traps`]). The count of the calling thread belongs to its own run. The count of a pool's thread belongs to
//! the only run in the session, because several runs share a session only if its graph does not divide integers ([`crate::session_share`]). The same
//! holds for the pool that sessions of several models share (`enable-global-threadpool`). If one of its threads still divides without a result, all
//! runs that use it fail.

use std::sync::mpsc::channel;
use std::sync::{Arc, LazyLock};
use std::thread::{Builder, JoinHandle};

use nerite_guard::arithmetic::COUNTING_MAX;
use nerite_guard::{Errno, Traps, count_traps};
use nerite_request::Status;
use ort::environment::ThreadManager;

/// The stack of ONNX Runtime's own threads on most systems. Rust's default is a quarter of it.
const STACK_BYTES: usize = 8 << 20;

static SHARED_POOL: LazyLock<Arc<Traps>> = LazyLock::new(Arc::default);

/// Integer divisions of one session that had no result.
#[derive(Clone, Debug)]
pub struct SessionTraps {
    own: Arc<Traps>,
    pool: Arc<Traps>,
}

impl SessionTraps {
    /// The counters of a session. `shares_pool`: it may compute on the pool that all sessions share.
    pub fn new(shares_pool: bool) -> SessionTraps {
        let pool = if shares_pool { Arc::clone(&SHARED_POOL) } else { Arc::default() };
        SessionTraps { own: Arc::default(), pool }
    }

    /// The counters for another instance of the session, whose calls come on other threads.
    pub fn of_another_thread(&self) -> SessionTraps {
        SessionTraps { own: Arc::default(), pool: Arc::clone(&self.pool) }
    }

    /// Starts the threads of the session's own pool.
    pub fn pool_threads(&self) -> PoolThreads {
        PoolThreads(Arc::clone(&self.pool))
    }

    /// The number of divisions without a result so far.
    pub fn count(&self) -> usize {
        self.own.count().wrapping_add(self.pool.count())
    }

    /// Makes a call to the session, and counts the divisions without a result on this thread. Err: the call was not made.
    pub fn counting<R>(&self, call: impl FnOnce() -> R) -> Result<R, Status> {
        count_traps(&self.own, call).map_err(|Errno(_)| Status::unavailable(too_many_threads()))
    }
}

/// Starts threads of a pool.
pub struct PoolThreads(Arc<Traps>);

impl PoolThreads {
    /// The threads of the pool that all sessions share.
    pub fn shared() -> PoolThreads {
        PoolThreads(Arc::clone(&SHARED_POOL))
    }
}

impl ThreadManager for PoolThreads {
    type Thread = JoinHandle<()>;

    fn create(&self, work: impl FnOnce() + Send + 'static) -> ort::Result<JoinHandle<()>> {
        let traps = Arc::clone(&self.0);
        let (sender, started) = channel();
        let serve = move || {
            // If the divisions of the thread cannot be counted, the library gets an error in place of the thread.
            let _ = count_traps(&traps, move || {
                if sender.send(()).is_ok() {
                    work();
                }
            });
        };
        let thread = Builder::new().name("onnxruntime".into()).stack_size(STACK_BYTES).spawn(serve);
        let thread = thread.map_err(|fault| ort::Error::new(format!("the system gave no thread: {fault}")))?;
        started.recv().map_err(|_| ort::Error::new(too_many_threads()))?;
        Ok(thread)
    }

    fn join(thread: JoinHandle<()>) -> ort::Result<()> {
        thread.join().map_err(|_| ort::Error::new("a thread of the pool panicked"))
    }
}

fn too_many_threads() -> String {
    format!("{COUNTING_MAX} threads run ONNX Runtime already")
}

/// The error of a request whose values led to a division without a result.
pub fn no_such_number() -> Status {
    Status::invalid(
        "the model divided an integer by zero, or the smallest integer by -1, with these inputs: there is no result",
    )
}
