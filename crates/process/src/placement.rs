//! On which cores does a process run, and on which NUMA node does its memory lie?
//!
//! A process gets both from the thread that starts it.

use nerite_memory::MemoryPolicy;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores and the memory policy of a thread. `None` for what the system does not tell.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Placement {
    cores: Option<CpuSet>,
    memory: Option<MemoryPolicy>,
}

impl Placement {
    /// Those of this thread.
    pub fn of_thread() -> Placement {
        Placement { cores: sched_getaffinity(None).ok(), memory: MemoryPolicy::of_thread().ok() }
    }

    /// Gives them to this thread. If that fails, the processes that it starts are like those of the server.
    pub fn apply(&self) {
        if let Some(cores) = &self.cores {
            let _ = sched_setaffinity(None, cores);
        }
        if let Some(memory) = &self.memory {
            let _ = memory.apply();
        }
    }

    /// Does `work` on a thread that has them meanwhile, so that a process that it starts has them too.
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
        // Where this process may choose no node, there is nothing to see of the memory.
        let node = MemoryPolicy::prefer(0).filter(|node| node.apply().is_ok());
        own.apply();
        let elsewhere = Placement { cores: Some(one), memory: node.or_else(|| own.memory.clone()) };
        let started =
            elsewhere.within(|| std::thread::scope(|scope| scope.spawn(Placement::of_thread).join().unwrap()));
        assert!(started == elsewhere && Placement::of_thread() == own);
    }
}
