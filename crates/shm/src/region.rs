//! What is a registered region, and how does a request access it?

use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use nerite_cuda::PageLock;
use nerite_guard::MovedPages;
use nerite_memory::{
    Access, Buffer, DeviceCopier, DeviceShare, Extent, ExtentError, IpcSource, MemoryOwner, Place, ProcessPermit,
    Share, ShareMark, Slot, Vacant,
};

use crate::deferred::{Deferred, OwnerId, Unmap};
use crate::error::ShmError;
use crate::gpu::Gpu;
use crate::loss::Loss;
use crate::mapped_counts::{MappedCounts, QuotaPermit};
use crate::record::Record;
use crate::source::Mapping;

/// Something that is dropped with a region, such as the charge for its name.
pub type Attached = Box<dyn Any + Send + Sync>;

/// A mapping of another process's memory. The registration and each Buffer and Slot hold an Arc of it. The memory is unmapped after the last one is dropped.
pub struct Region {
    record: Arc<Record>,
    memory: Deferred<RegionMemory>,
    mark: ShareMark,
}

/// The parts of a region that exist until it is unmapped.
struct RegionMemory {
    /// Before the mapping, because fields drop in order: locked memory must still be mapped.
    lock: Option<PageLock>,
    mapping: Box<dyn Mapping>,
    _attached: Attached,
    /// Last, because fields drop in order: the count is decreased after the memory was unmapped.
    permit: QuotaPermit,
}

impl Unmap for RegionMemory {
    fn byte_size(&self) -> usize {
        self.mapping.len()
    }

    fn owner(&self) -> OwnerId {
        self.permit.owner()
    }

    fn is_of_client(&self) -> bool {
        self.mapping.is_of_client()
    }

    fn frees_little(&self) -> bool {
        self.mapping.frees_little()
    }

    fn needs_driver(&self) -> bool {
        self.lock.is_some() || self.mapping.place() != Place::Host
    }
}

/// The former pages of a lost region, which may be the last mapping of its object. The guard has few places for such pages, so they are not kept as long as
/// the region.
struct LostPages {
    _moved: MovedPages,
    byte_size: usize,
    frees_little: bool,
    account: Arc<MappedCounts>,
}

impl Unmap for LostPages {
    fn byte_size(&self) -> usize {
        self.byte_size
    }

    fn owner(&self) -> OwnerId {
        self.account.owner()
    }

    fn is_of_client(&self) -> bool {
        true
    }

    fn frees_little(&self) -> bool {
        self.frees_little
    }
}

impl Region {
    /// `attached` is dropped after the region was unmapped.
    pub(crate) fn new(
        record: Arc<Record>,
        mapping: Box<dyn Mapping>,
        attached: Attached,
        permit: QuotaPermit,
    ) -> Region {
        debug_assert_eq!(record.byte_size, mapping.len() as u64);
        let memory = Deferred::new(RegionMemory { lock: None, mapping, _attached: attached, permit });
        Region { record, memory, mark: ShareMark::new() }
    }

    /// The same region, page-locked if the host has a GPU and the operator enabled it. `present` says that all pages of its object are allocated.
    pub(crate) fn locked(mut self, gpu: Option<&Gpu>, present: bool) -> Region {
        let what = format!("region '{}'", self.record.name);
        // SAFETY: the mapping is unchanged until the RegionMemory drops it, which is after the lock by the order of the fields.
        self.memory.lock = unsafe { Gpu::lock(gpu, &what, self.mapping().base(), self.mapping().len(), present) };
        self
    }

    /// The region's name and origin.
    pub fn record(&self) -> &Arc<Record> {
        &self.record
    }

    /// Number of bytes.
    pub fn byte_size(&self) -> usize {
        self.mapping().len()
    }

    /// What kind of memory the bytes lie in.
    pub fn place(&self) -> Place {
        if self.memory.lock.is_some() { Place::Pinned } else { self.mapping().place() }
    }

    /// Whether an access found missing memory. The region remains lost until a new registration replaces it.
    pub fn is_lost(&self) -> bool {
        self.mapping().lost_at().is_some()
    }

    pub(crate) fn mapping(&self) -> &dyn Mapping {
        &*self.memory.mapping
    }

    fn loss(&self) -> Option<Loss> {
        let at = self.mapping().lost_at()?;
        // Pages that requests wrote in place of the lost memory would otherwise be kept until the client unregisters the region.
        self.mapping().give_back();
        if let Some(moved) = self.mapping().take_moved() {
            let (byte_size, frees_little) = (self.mapping().len(), self.mapping().frees_little());
            let account = self.memory.permit.account();
            drop(Deferred::new(LostPages { _moved: moved, byte_size, frees_little, account }));
        }
        Some(Loss::new(&self.record, at, self.mapping().object_bytes(), self.mapping().object_now()))
    }

    /// A part of the region, by Triton's rules for a tensor: an offset at the end is an error even for 0 bytes.
    pub(crate) fn locate(self: Arc<Region>, offset: u64, byte_size: u64) -> Result<Located, ShmError> {
        let name = || String::from(&*self.record.name);
        let limit = self.mapping().len();
        if let Some(loss) = self.loss() {
            return Err(ShmError::Lost(Box::new(loss)));
        }
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

impl MemoryOwner for Region {
    fn fault(&self) -> Option<String> {
        self.loss().map(|loss| loss.to_string())
    }

    fn ipc(&self) -> Option<IpcSource> {
        self.mapping().ipc()
    }

    fn share(&self) -> Option<&dyn Share> {
        self.mapping().is_shareable().then_some(self)
    }

    fn copier(&self) -> Option<&dyn DeviceCopier> {
        self.mapping().copier()
    }
}

impl Share for Region {
    fn mark(&self) -> &ShareMark {
        &self.mark
    }

    fn base(&self) -> NonNull<u8> {
        self.mapping().base()
    }

    fn byte_size(&self) -> usize {
        self.mapping().len()
    }

    fn open(&self) -> io::Result<(OwnedFd, u64)> {
        self.mapping().reopen()
    }

    fn device(&self) -> Option<DeviceShare> {
        let (Place::Device(ordinal), Some(source)) = (self.mapping().place(), self.mapping().ipc()) else {
            return None;
        };
        Some(DeviceShare { ordinal, handle: source.handle })
    }

    fn is_sealed(&self) -> bool {
        false
    }

    fn lose(&self, at: usize) {
        self.mapping().lose(at);
    }

    /// Each model's process has its own page tables for the region. So the bytes that it maps count against the owner like those of another region.
    fn admit_process(&self) -> Option<ProcessPermit> {
        if self.mapping().place() != Place::Host {
            return Some(Box::new(()));
        }
        Some(Box::new(self.memory.permit.once_more().ok()?))
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({:?})", self.record)
    }
}

/// Existing bytes of a region, and a reference that keeps them mapped.
#[derive(Clone, Debug)]
pub struct Located {
    region: Arc<Region>,
    extent: Extent,
}

impl Located {
    /// The region of these bytes.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The range of these bytes in the region.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// The bytes as an input, in place. The client may write to them at any moment, so the Buffer is `Access::Shared`.
    pub fn into_buffer(self) -> Buffer {
        let Located { region, extent } = self;
        // SAFETY: `Region::locate` made the extent within `mapping.len()`. `Mapping` guarantees that these bytes are at `base()`.
        let ptr = unsafe { region.mapping().base().add(extent.offset()) };
        let place = region.place();
        // SAFETY: `Mapping` guarantees initialised bytes that remain mapped while the mapping lives. It is never replaced in its Region, and the Arc
        // passed as `keep` holds the Region. Shared claims nothing about other writers.
        unsafe { Buffer::from_raw(ptr, extent.len(), place, Access::Shared, region) }
    }

    /// The bytes as a slot for an output. Any number of Slots and Buffers may overlap, as in Triton.
    pub fn into_slot(self) -> Slot<Vacant> {
        let Located { region, extent } = self;
        // SAFETY: `Region::locate` made the extent within `mapping.len()`. `Mapping` guarantees that these bytes are at `base()`.
        let ptr = unsafe { region.mapping().base().add(extent.offset()) };
        let place = region.place();
        // SAFETY: as in `into_buffer`, and `Mapping` guarantees that the bytes are writable.
        unsafe { Slot::from_raw(ptr, extent.len(), place, Access::Shared, region) }
    }
}
