//! On which cores does a process run, and on which NUMA node does its memory lie?
//!
//! A process gets both from the thread that starts it.

use nerite_memory::MemoryPolicy;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores and the memory policy of a thread. `None` if the system does not report it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Placement {
    cores: Option<CpuSet>,
    memory: Option<MemoryPolicy>,
}

impl Placement {
    /// The cores and the memory policy of this thread.
    pub fn of_thread() -> Placement {
        Placement { cores: sched_getaffinity(None).ok(), memory: MemoryPolicy::of_thread().ok() }
    }

    /// Sets the cores and the policy for this thread. If that fails, the processes that the thread starts have those of the server.
    pub fn apply(&self) {
        if let Some(cores) = &self.cores {
            let _ = sched_setaffinity(None, cores);
        }
        if let Some(memory) = &self.memory {
            let _ = memory.apply();
        }
    }

    /// Does `work` on a thread with these cores and this policy, so that a process that it starts has them too.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        let own = Placement::of_thread();
        if own == *self {
            return work();
        }
        self.apply();
        let done = work();
        own.apply();
        done
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_where_the_caller_runs_and_the_thread_goes_back() {
        let own = Placement::of_thread();
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|core| own.cores.as_ref().unwrap().is_set(*core)).unwrap());
        // If this process may not choose a node, the memory policy cannot be tested.
        let node = MemoryPolicy::prefer(0).filter(|node| node.apply().is_ok());
        own.apply();
        let elsewhere = Placement { cores: Some(one), memory: node.or_else(|| own.memory.clone()) };
        let started =
            elsewhere.within(|| std::thread::scope(|scope| scope.spawn(Placement::of_thread).join().unwrap()));
        assert!(started == elsewhere && Placement::of_thread() == own);
    }
}
