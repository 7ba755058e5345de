//! Which of its requests' tensors may a model's process give to another model?

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use nerite_locks::Mutex;
use nerite_memory::{Buffer, Extent};

use super::lock;
use crate::packets::SegmentOffset;
use crate::plan::Planned;

/// The inputs of the requests that a process has. Noted from its first request to another model on: most processes make none.
#[derive(Default)]
pub(crate) struct BatchInputs {
    is_wanted: AtomicBool,
    tensors: Mutex<HashMap<u64, Vec<Buffer>>>,
}

impl BatchInputs {
    /// From now on they are noted.
    pub(crate) fn want(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    /// Notes the inputs of a batch, if that is wanted.
    pub(crate) fn add(&self, planned: &[Planned]) {
        if !self.is_wanted.load(Ordering::Relaxed) {
            return;
        }
        let mut tensors = lock(&self.tensors);
        for Planned { number, job, inputs, .. } in planned {
            let shared = job.inputs().iter().map(|input| &input.data).filter(|data| data.share().is_some());
            let buffers = shared.cloned().chain(inputs.iter().map(crate::blocks::Block::buffer)).collect();
            tensors.insert(*number, buffers);
        }
    }

    /// The process has these requests no more.
    pub(crate) fn remove(&self, numbers: &[u64]) {
        if self.is_wanted.load(Ordering::Relaxed) {
            let mut tensors = lock(&self.tensors);
            for number in numbers {
                tensors.remove(number);
            }
        }
    }

    /// The process is no more.
    pub(crate) fn clear(&self) {
        if self.is_wanted.load(Ordering::Relaxed) {
            lock(&self.tensors).clear();
        }
    }

    /// Bytes within one of them.
    pub(crate) fn find(&self, spot: SegmentOffset, bytes: usize) -> Option<Buffer> {
        lock(&self.tensors).values().flatten().find_map(|buffer| part(buffer, spot, bytes))
    }
}

/// The bytes at that place, if they lie within this memory.
pub(crate) fn part(whole: &Buffer, spot: SegmentOffset, bytes: usize) -> Option<Buffer> {
    let window = whole.share()?;
    if window.share.mark().number() != spot.segment {
        return None;
    }
    let extent = Extent::new(spot.offset.checked_sub(window.offset)?, bytes, whole.len()).ok()?;
    Some(whole.slice(extent))
}
