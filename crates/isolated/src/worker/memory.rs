//! Which memory of the server and its clients has a child mapped?

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use nerite_memory::{Buffer, Extent, Slot};
use nerite_process::packets::Segment;
use nerite_request::Status;
use nerite_shm::SharedMapping;

/// The segments that are mapped here, by the server's numbers.
#[derive(Default)]
pub(super) struct Memory {
    segments: HashMap<u64, SharedMapping>,
    /// Those that could not be mapped, until the server is told.
    unmapped: Vec<u64>,
}

impl Memory {
    /// Maps each, from one descriptor each.
    pub(super) fn map(&mut self, wanted: Option<Vec<Segment>>, descriptors: Vec<OwnedFd>) -> Result<(), String> {
        let wanted = wanted.ok_or("the server told of memory in words that make no sense")?;
        let mut failed = Ok(());
        let mut descriptors = descriptors.into_iter();
        for Segment { number: segment, bytes, file_offset, .. } in wanted {
            let made = descriptors.next().ok_or_else(|| std::io::Error::other("its descriptor did not come"));
            match made.and_then(|descriptor| SharedMapping::map(descriptor, file_offset, bytes)) {
                Ok(mapping) => drop(self.segments.insert(segment, mapping)),
                Err(error) => {
                    self.unmapped.push(segment);
                    failed = Err(format!(
                        "memory of {bytes} bytes cannot be mapped in the model's process: {error}; raise its limits on address \
                         space (ulimit -v) and mappings, or use smaller regions"
                    ));
                }
            }
        }
        failed
    }

    /// Lets go of these. What requests still use stays mapped until they are answered.
    pub(super) fn forget(&mut self, segments: impl Iterator<Item = u64>) {
        for segment in segments {
            self.segments.remove(&segment);
        }
    }

    /// Those that the server is to be told of, once.
    pub(super) fn take_unmapped(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.unmapped)
    }

    pub(super) fn get(&self, segment: u64) -> Result<&SharedMapping, Status> {
        let found = self.segments.get(&segment);
        found.ok_or_else(|| Status::internal(format!("segment {segment} is not mapped in the model's process")))
    }
}

/// Part of a mapping, readable.
pub(super) fn buffer(mapping: &SharedMapping, offset: usize, len: usize) -> Result<Buffer, Status> {
    Ok(mapping.buffer(extent(mapping, offset, len)?))
}

/// Part of a mapping, writable.
pub(super) fn slot(mapping: &SharedMapping, offset: usize, len: usize) -> Result<Slot, Status> {
    Ok(mapping.slot(extent(mapping, offset, len)?))
}

fn extent(mapping: &SharedMapping, offset: usize, len: usize) -> Result<Extent, Status> {
    Extent::new(offset, len, mapping.byte_size())
        .map_err(|error| Status::internal(format!("a tensor's memory: {error}")))
}
