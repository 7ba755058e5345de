//! Which inputs, trace and client does a nested request get from the requests that a model's process is running?

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nerite_locks::Mutex;
use nerite_memory::{Buffer, Extent};
use nerite_request::{Client, RequestTrace};

use super::lock;
use crate::packets::SegmentOffset;
use crate::plan::Planned;

/// The inputs of the requests that a process has. They are noted from its first request to another model on, because most processes make none.
#[derive(Default)]
pub(crate) struct BatchInputs {
    is_wanted: AtomicBool,
    tensors: Mutex<HashMap<u64, (Client, Vec<Buffer>)>>,
    /// Whether any request was traced. If not, no lock is taken.
    has_traces: AtomicBool,
    traces: Mutex<HashMap<u64, Arc<RequestTrace>>>,
}

impl BatchInputs {
    /// Begins to note inputs.
    pub(crate) fn want(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    /// Notes the inputs of a batch, if needed.
    pub(crate) fn add(&self, planned: &[Planned]) {
        for Planned { number, job, .. } in planned {
            if let Some(trace) = job.responder().trace() {
                self.has_traces.store(true, Ordering::Relaxed);
                lock(&self.traces).insert(*number, Arc::clone(trace));
            }
        }
        if !self.is_wanted.load(Ordering::Relaxed) {
            return;
        }
        let mut tensors = lock(&self.tensors);
        for Planned { number, job, inputs, .. } in planned {
            let shared = job.inputs().iter().map(|input| &input.data).filter(|data| data.share().is_some());
            let buffers = shared.cloned().chain(inputs.iter().map(crate::blocks::Block::buffer)).collect();
            tensors.insert(*number, (job.client(), buffers));
        }
    }

    /// Removes requests that the process does not have any more.
    pub(crate) fn remove(&self, numbers: &[u64]) {
        if self.has_traces.load(Ordering::Relaxed) {
            let mut traces = lock(&self.traces);
            let ended: Vec<_> = numbers.iter().filter_map(|number| traces.remove(number)).collect();
            drop((traces, ended));
        }
        if self.is_wanted.load(Ordering::Relaxed) {
            let mut tensors = lock(&self.tensors);
            for number in numbers {
                tensors.remove(number);
            }
        }
    }

    /// Removes all, because the process has ended.
    pub(crate) fn clear(&self) {
        if self.has_traces.swap(false, Ordering::Relaxed) {
            let ended = std::mem::take(&mut *lock(&self.traces));
            drop(ended);
        }
        if self.is_wanted.load(Ordering::Relaxed) {
            lock(&self.tensors).clear();
        }
    }

    /// The trace of a request, for a nested request of it.
    pub(crate) fn trace(&self, number: u64) -> Option<Arc<RequestTrace>> {
        lock(&self.traces).get(&number).map(|trace| trace.child())
    }

    /// The client of all noted requests of the process, or the server itself if they have several clients. The process does not say for which of its
    /// requests it makes a nested one.
    pub(crate) fn client(&self) -> Client {
        Client::of_all(lock(&self.tensors).values().map(|(client, _)| *client))
    }

    /// Bytes within one of the inputs.
    pub(crate) fn find(&self, location: SegmentOffset, bytes: usize) -> Option<Buffer> {
        let tensors = lock(&self.tensors);
        tensors.values().flat_map(|(_, buffers)| buffers).find_map(|buffer| part(buffer, location, bytes))
    }
}

/// The bytes at that offset, if they lie within this memory.
pub(crate) fn part(whole: &Buffer, location: SegmentOffset, bytes: usize) -> Option<Buffer> {
    let window = whole.share()?;
    if window.share.mark().number() != location.segment {
        return None;
    }
    let extent = Extent::new(location.offset.checked_sub(window.offset)?, bytes, whole.len()).ok()?;
    Some(whole.slice(extent))
}
