//! What do the processes of all models of one runtime share?

use std::sync::{Arc, OnceLock, PoisonError};

use nerite_locks::Mutex;
use nerite_request::Status;
use nerite_shm::{LeaseLimits, Pools};

use crate::Supervisor;

/// The thread that starts the processes, and the memory that server and processes share. Both are made for the first model, so a server without such
/// models has neither.
pub struct ProcessHost {
    thread: &'static str,
    pools: OnceLock<Arc<Pools>>,
    supervisor: Mutex<Option<Supervisor>>,
}

impl ProcessHost {
    /// A host without thread and memory. The thread will have this name.
    pub fn new(thread: &'static str) -> ProcessHost {
        ProcessHost { thread, pools: OnceLock::new(), supervisor: Mutex::default() }
    }

    /// Memory for tensors that are neither in a client's memory nor in a process's own.
    pub fn pools(&self) -> &Arc<Pools> {
        let bytes_max = nerite_memory::allowed_bytes() / 2;
        self.pools.get_or_init(|| Pools::new(LeaseLimits { bytes_max, session_bytes_max: bytes_max }))
    }

    /// The thread that starts processes, and reaps them.
    pub fn supervisor(&self) -> Result<Supervisor, Status> {
        let mut supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        if supervisor.is_none() {
            let started = Supervisor::start(self.thread);
            *supervisor = Some(started.map_err(|error| {
                Status::unavailable(format!("no thread ({}) to keep the processes of models: {error}", self.thread))
            })?);
        }
        Ok(supervisor.clone().expect("it was made just now, if not before"))
    }

    /// Returns memory to the system that was unused during `rounds_max` calls of this function.
    pub fn trim(&self, rounds_max: u32) {
        if let Some(pools) = self.pools.get() {
            pools.trim(rounds_max);
        }
    }
}
