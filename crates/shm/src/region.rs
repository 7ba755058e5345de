//! What is one registered piece of memory, and how does a request get at it?

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nerite_memory::{Access, Buffer, Extent, ExtentError, Keep, Slot, Vacant};

use crate::error::ShmError;
use crate::record::{Origin, Record};
use crate::source::Mapping;
use crate::tally::Ticket;

/// A mapping of another process's memory. It goes when its last Arc goes: the registration's, a Buffer's or a Slot's.
pub struct Region {
    record: Arc<Record>,
    mapping: Box<dyn Mapping>,
    /// 0, or 1 + the offset of the first byte that could not be reached.
    poison: AtomicUsize,
    /// Last, because fields drop in order: the count goes down after the memory was unmapped.
    _ticket: Ticket,
}

impl Region {
    pub(crate) fn new(record: Arc<Record>, mapping: Box<dyn Mapping>, ticket: Ticket) -> Region {
        debug_assert_eq!(record.byte_size, mapping.len() as u64);
        Region { record, mapping, poison: AtomicUsize::new(0), _ticket: ticket }
    }

    /// What the region is called and where it comes from.
    pub fn record(&self) -> &Arc<Record> {
        &self.record
    }

    /// Number of bytes.
    pub fn byte_size(&self) -> usize {
        self.mapping.len()
    }

    /// Says that the byte at `offset` could not be reached, for ever after. Only an atomic store, so that a signal handler
    /// may do it; the first caller's offset is the one that is told.
    pub fn poison(&self, offset: usize) {
        let _ = self.poison.compare_exchange(0, offset.saturating_add(1), Ordering::AcqRel, Ordering::Acquire);
    }

    /// Part of the region, by Triton's rules for a tensor: an offset at the end is wrong even for no bytes.
    pub(crate) fn locate(self: Arc<Region>, offset: u64, byte_size: u64) -> Result<Located, ShmError> {
        let name = || String::from(&*self.record.name);
        let limit = self.mapping.len();
        if offset >= limit as u64 {
            return Err(ShmError::OffsetBeyond { name: name(), offset, region_bytes: limit as u64 });
        }
        // u64 and usize are the same width: `limits` asserts it.
        match Extent::new(offset as usize, byte_size as usize, limit) {
            Ok(extent) => Ok(Located { extent, region: self }),
            Err(ExtentError::Overflow { .. }) => Err(ShmError::Overflow { name: name(), offset, byte_size }),
            Err(ExtentError::Beyond { .. }) => {
                Err(ShmError::EndBeyond { name: name(), offset, byte_size, region_bytes: limit as u64 })
            }
        }
    }
}

impl Keep for Region {
    fn fault(&self) -> Option<String> {
        let offset = self.poison.load(Ordering::Acquire).checked_sub(1)?;
        let Record { name, byte_size, origin } = &*self.record;
        Some(match origin {
            Origin::System { key, .. } => format!(
                "shared memory region '{name}' lost its memory while in use: byte {offset} of {byte_size} cannot be reached \
                 (object '{key}' was truncated, or /dev/shm is full); unregister it and register it again"
            ),
            Origin::Cuda { device_id } => format!(
                "shared memory region '{name}' lost its memory while in use: byte {offset} of {byte_size} on device \
                 {device_id} cannot be reached; unregister it and register it again"
            ),
        })
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({:?})", self.record)
    }
}

/// Bytes of a region that exist, and a reference that keeps them mapped.
#[derive(Clone, Debug)]
pub struct Located {
    region: Arc<Region>,
    extent: Extent,
}

impl Located {
    /// The region they belong to.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Which bytes of the region.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// The bytes as an input, in place. The client may write them at any moment, so the Buffer is `Access::Shared`.
    pub fn into_buffer(self) -> Buffer {
        let Located { region, extent } = self;
        // SAFETY: `Region::locate` made the extent within `mapping.len()`, which `Mapping` promises lie behind `base()`.
        let ptr = unsafe { region.mapping.base().add(extent.offset()) };
        let place = region.mapping.place();
        // SAFETY: `Mapping` promises initialised bytes that stay mapped while the mapping lives; it is never replaced in
        // its Region, and the Arc handed over as `keep` holds the Region. Shared claims nothing about other writers.
        unsafe { Buffer::from_raw(ptr, extent.len(), place, Access::Shared, region) }
    }

    /// The bytes as the place for an output. Any number of Slots and Buffers may cover the same bytes, as in Triton.
    pub fn into_slot(self) -> Slot<Vacant> {
        let Located { region, extent } = self;
        // SAFETY: `Region::locate` made the extent within `mapping.len()`, which `Mapping` promises lie behind `base()`.
        let ptr = unsafe { region.mapping.base().add(extent.offset()) };
        let place = region.mapping.place();
        // SAFETY: as in `into_buffer`, and `Mapping` promises that the bytes are writable.
        unsafe { Slot::from_raw(ptr, extent.len(), place, Access::Shared, region) }
    }
}
