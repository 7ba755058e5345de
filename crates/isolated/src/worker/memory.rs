//! Which memory of the server and its clients has a child mapped?

use std::any::Any;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::Duration;

use nerite_locks::Mutex;
use nerite_memory::{Buffer, Extent, Slot};
use nerite_process::packets::{Segment, SegmentOffset};
use nerite_request::Status;
use nerite_shm::SharedMapping;

/// How long to wait for a segment that another thread is about to map. A packet on one channel may name a segment whose descriptor comes over another
/// channel.
const ON_ITS_WAY: Duration = Duration::from_secs(10);

/// The segments that are mapped here, by the server's numbers.
#[derive(Default)]
pub(super) struct Memory {
    state: Mutex<State>,
    mapped: Condvar,
}

#[derive(Default)]
struct State {
    segments: HashMap<u64, SharedMapping>,
    /// Why each of these segments could not be mapped. An entry is removed when the server is told of it.
    unmapped: HashMap<u64, String>,
}

impl Memory {
    /// Maps each segment from one descriptor. If one cannot be mapped, only the requests that use it fail.
    pub(super) fn map(&self, wanted: Option<Vec<Segment>>, descriptors: Vec<OwnedFd>) -> Result<(), String> {
        let wanted = wanted.ok_or("the server told of memory in words that make no sense")?;
        let mut descriptors = descriptors.into_iter();
        for Segment { number: segment, bytes, file_offset, is_region, is_private, .. } in wanted {
            let made = descriptors.next().ok_or_else(|| std::io::Error::other("its descriptor did not come"));
            // Private memory holds inputs. It is mapped only for reading, because no engine writes to its inputs.
            let map = if is_private { SharedMapping::map_to_read } else { SharedMapping::map };
            match made.and_then(|descriptor| map(descriptor, file_offset, bytes, is_region)) {
                Ok(mapping) => drop(self.lock().segments.insert(segment, mapping)),
                Err(error) => {
                    let why = format!(
                        "memory of {bytes} bytes cannot be mapped in the model's process: {error}; raise its limits on address \
                         space (ulimit -v) and mappings, or use smaller regions"
                    );
                    self.lock().unmapped.insert(segment, why);
                }
            }
        }
        self.mapped.notify_all();
        Ok(())
    }

    /// Drops these segments. They stay mapped while requests use them.
    pub(super) fn forget(&self, segments: impl Iterator<Item = u64>) {
        for segment in segments {
            let gone = self.lock().segments.remove(&segment);
            drop(gone);
        }
    }

    /// Takes the segments that could not be mapped, to report them to the server.
    pub(super) fn take_unmapped(&self) -> Vec<u64> {
        std::mem::take(&mut self.lock().unmapped).into_keys().collect()
    }

    /// The segment and offset of these bytes, if the server knows that memory.
    pub(super) fn location_of(&self, data: &Buffer) -> Option<SegmentOffset> {
        let state = self.lock();
        let of = |(segment, mapping): (&u64, &SharedMapping)| {
            mapping.offset_of(data).map(|offset| SegmentOffset { segment: *segment, offset })
        };
        state.segments.iter().find_map(of).filter(|_| !data.is_empty())
    }

    /// The segment of that number. If another channel may be bringing it (`on_its_way`), this waits.
    pub(super) fn get(&self, segment: u64, on_its_way: bool) -> Result<SharedMapping, Status> {
        let timeout = if on_its_way { ON_ITS_WAY } else { Duration::ZERO };
        let is_missing =
            |state: &mut State| !state.segments.contains_key(&segment) && !state.unmapped.contains_key(&segment);
        let waited = self.mapped.wait_timeout_while(self.lock(), timeout, is_missing);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let found = state.segments.get(&segment).cloned();
        found.ok_or_else(|| match state.unmapped.get(&segment) {
            Some(why) => Status::unavailable(why),
            None => Status::internal(format!("segment {segment} is not mapped in the model's process")),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of a mapping, to read.
pub(super) fn buffer(mapping: &SharedMapping, offset: usize, len: usize) -> Result<Buffer, Status> {
    Ok(mapping.buffer(extent(mapping, offset, len)?))
}

/// The same, where the last reader of the buffer drops `with`.
pub(super) fn buffer_with(
    mapping: &SharedMapping,
    offset: usize,
    len: usize,
    with: Arc<dyn Any + Send + Sync>,
) -> Result<Buffer, Status> {
    Ok(mapping.buffer_with(extent(mapping, offset, len)?, with))
}

/// A part of a mapping, to write.
pub(super) fn slot(mapping: &SharedMapping, offset: usize, len: usize) -> Result<Slot, Status> {
    Ok(mapping.slot(extent(mapping, offset, len)?))
}

fn extent(mapping: &SharedMapping, offset: usize, len: usize) -> Result<Extent, Status> {
    Extent::new(offset, len, mapping.byte_size())
        .map_err(|error| Status::internal(format!("a tensor's memory: {error}")))
}
