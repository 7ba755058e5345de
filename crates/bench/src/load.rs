//! How is load made, and what is recorded of each request?
//!
//! ```text
//!   worker ─ Pace ─ due ─► Link ─ request ─► server        a thread for each connection
//!              │             └─ response ─► Record ─ taken at the end of a window
//! ```

mod link;
mod pace;
mod permits;
mod record;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

pub(crate) use self::link::{Linker, Wire};
pub(crate) use self::pace::{Pace, Schedule};
use self::permits::Permits;
pub(crate) use self::record::Record;
use self::record::Records;
use crate::dataset::Sequences;
use crate::lock;

/// Workers that send requests until they are stopped.
pub(crate) struct Load {
    shared: Arc<Shared>,
}

/// What the workers share.
struct Shared {
    linker: Linker,
    pace: Pace,
    /// `None`: the model has no sequences.
    sequences: Option<std::sync::Mutex<Sequences>>,
    /// The step of the next request without a sequence.
    step: AtomicUsize,
    steps: usize,
    workers_max: usize,
    records: Records,
    /// Requests that ended, since the load began. Calls of a session that share a packet are one here.
    done: AtomicU64,
    /// Requests that may begin, unless all may.
    allowed: AtomicU64,
    failure: std::sync::Mutex<Option<String>>,
    workers: std::sync::Mutex<Vec<JoinHandle<()>>>,
    /// Workers that wait until their next request is due.
    idle: AtomicUsize,
    keeps_each: bool,
    permits: Permits,
}

impl Load {
    /// Starts `workers` workers, and more of them up to `workers_max` when requests are due and none is free. They connect, and wait until requests may begin.
    pub(crate) fn start(
        linker: Linker,
        pace: Pace,
        (workers, workers_max): (usize, usize),
        sequences: Option<Sequences>,
        keeps_each: bool,
    ) -> Load {
        let steps = linker.steps();
        let shared = Arc::new(Shared {
            linker,
            pace,
            sequences: sequences.map(std::sync::Mutex::new),
            step: AtomicUsize::new(0),
            steps,
            workers_max,
            records: Records::default(),
            done: AtomicU64::new(0),
            allowed: AtomicU64::new(0),
            failure: std::sync::Mutex::default(),
            workers: std::sync::Mutex::default(),
            idle: AtomicUsize::new(0),
            keeps_each,
            permits: Permits::default(),
        });
        (0..workers).for_each(|_| worker::start(&shared));
        Load { shared }
    }

    /// Lets so many more requests begin.
    pub(crate) fn allow(&self, requests: u64) {
        self.shared.pace.restart();
        self.shared.allowed.fetch_add(requests, Ordering::Relaxed);
        self.shared.permits.allow(requests);
    }

    /// Lets all further requests begin.
    pub(crate) fn allow_all(&self) {
        self.shared.pace.restart();
        self.shared.permits.allow_all();
    }

    /// Requests that ended so far.
    pub(crate) fn done(&self) -> u64 {
        self.shared.done.load(Ordering::Relaxed)
    }

    /// Requests that may begin until now, unless all may.
    pub(crate) fn allowed(&self) -> u64 {
        self.shared.allowed.load(Ordering::Relaxed)
    }

    /// What was recorded since the last call.
    pub(crate) fn take(&self) -> Record {
        self.shared.records.take()
    }

    /// Why a worker gave up, if one did.
    pub(crate) fn failure(&self) -> Option<String> {
        lock(&self.shared.failure).clone()
    }

    /// Stops the workers, and waits until their requests have ended.
    pub(crate) fn stop(self) {
        self.shared.permits.close();
        loop {
            let worker = lock(&self.shared.workers).pop();
            let Some(worker) = worker else { return };
            // A worker that panicked has nothing to add.
            let _ = worker.join();
        }
    }
}
