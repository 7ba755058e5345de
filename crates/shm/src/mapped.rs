//! How does a model's process map the memory that its server shares with it?

use std::any::Any;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nerite_memory::{Access, Buffer, Extent, MemoryOwner, Place, Slot, Vacant};

use crate::deferred::{Deferred, Unmap};
use crate::guard::{Watch, watch};
use crate::posix::{PosixMapping, page_bytes};
use crate::window::Window;

/// A client's region or a lease, mapped in a model's process by the descriptor that the server sent. It is unmapped after this value, its clones and all
/// Buffers and Slots over it are dropped. It is watched, because the creator of the object may shrink it.
#[derive(Clone)]
pub struct SharedMapping(Arc<Held>);

struct Held(Deferred<Mapped>);

struct Mapped {
    /// Declared before the mapping, because fields are dropped in order: the range must leave the guard's table before it is unmapped.
    watch: Watch,
    mapping: PosixMapping,
    is_writable: bool,
    is_region: bool,
}

impl Unmap for Mapped {
    fn byte_size(&self) -> usize {
        self.mapping.len()
    }

    /// True even for a small mapping: it may be the last mapping of a large object, which the kernel then frees.
    fn is_of_client(&self) -> bool {
        self.is_region
    }
}

impl SharedMapping {
    /// Maps `byte_size` bytes from `file_offset` on, which is a multiple of the page size. The object may be shorter: missing bytes read as zeros, and
    /// [`SharedMapping::lost_at`] says so. `is_region` says that the object is a client's.
    pub fn map(descriptor: OwnedFd, file_offset: u64, byte_size: usize, is_region: bool) -> io::Result<SharedMapping> {
        SharedMapping::with(&File::from(descriptor), file_offset, byte_size, true, is_region)
    }

    /// As [`SharedMapping::map`], for reading only. A write to the mapping would end the process by a signal.
    pub fn map_to_read(
        descriptor: OwnedFd,
        file_offset: u64,
        byte_size: usize,
        is_region: bool,
    ) -> io::Result<SharedMapping> {
        SharedMapping::with(&File::from(descriptor), file_offset, byte_size, false, is_region)
    }

    fn with(
        file: &File,
        file_offset: u64,
        byte_size: usize,
        is_writable: bool,
        is_region: bool,
    ) -> io::Result<SharedMapping> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let end = file_offset.checked_add(byte_size as u64).ok_or_else(invalid)?;
        let window = Window::new(file_offset, byte_size as u64, end, page_bytes()).map_err(|_| invalid())?;
        let mapping = if is_writable { PosixMapping::new(file, window) } else { PosixMapping::to_read(file, window) }?;
        let pages = mapping.len().next_multiple_of(page_bytes());
        // SAFETY: the range is what mmap has just made, in whole pages, and contains only the peer's object. `mapping` unmaps it after `watch` is
        // dropped, by the order of the fields.
        let watch = unsafe { watch(mapping.base().as_ptr().expose_provenance(), pages) }?;
        Ok(SharedMapping(Arc::new(Held(Deferred::new(Mapped { watch, mapping, is_writable, is_region })))))
    }

    /// Number of bytes.
    pub fn byte_size(&self) -> usize {
        self.0.0.mapping.len()
    }

    /// The offset of the first accessed byte that had no memory. `None` if all accessed bytes had memory.
    pub fn lost_at(&self) -> Option<usize> {
        self.0.0.watch.lost_at()
    }

    /// A part of the mapping, readable in place. Other processes may write it at any moment.
    ///
    /// # Panics
    /// If the extent was made for a longer range.
    pub fn buffer(&self, extent: Extent) -> Buffer {
        assert!(extent.end() <= self.byte_size(), "extent up to {} of {}", extent.end(), self.byte_size());
        // SAFETY: the extent ends within the mapping, by the assertion.
        let ptr = unsafe { self.0.0.mapping.base().add(extent.offset()) };
        // SAFETY: the bytes are initialised by the kernel and mapped while the Arc passed here lives. The guard replaces lost pages. Shared claims
        // nothing about other writers.
        unsafe { Buffer::from_raw(ptr, extent.len(), Place::Host, Access::Shared, Arc::clone(&self.0) as _) }
    }

    /// As [`SharedMapping::buffer`]. The buffer keeps `with`, which is dropped with the buffer's last clone.
    ///
    /// # Panics
    /// If the extent was made for a longer range.
    pub fn buffer_with(&self, extent: Extent, with: Arc<dyn Any + Send + Sync>) -> Buffer {
        assert!(extent.end() <= self.byte_size(), "extent up to {} of {}", extent.end(), self.byte_size());
        // SAFETY: the extent ends within the mapping, by the assertion.
        let ptr = unsafe { self.0.0.mapping.base().add(extent.offset()) };
        let keep = Arc::new(HeldWith { _mapping: Arc::clone(&self.0), _with: with });
        // SAFETY: as in `buffer`: the Arc passed here holds the mapping.
        unsafe { Buffer::from_raw(ptr, extent.len(), Place::Host, Access::Shared, keep as _) }
    }

    /// A part of the mapping, writable in place.
    ///
    /// # Panics
    /// If the extent was made for a longer range, or if the memory was mapped for reading only.
    pub fn slot(&self, extent: Extent) -> Slot<Vacant> {
        assert!(self.0.0.is_writable, "memory that was mapped to read only");
        assert!(extent.end() <= self.byte_size(), "extent up to {} of {}", extent.end(), self.byte_size());
        // SAFETY: the extent ends within the mapping, by the assertion.
        let ptr = unsafe { self.0.0.mapping.base().add(extent.offset()) };
        // SAFETY: as in `buffer`, and the mapping is writable, by the assertion.
        unsafe { Slot::from_raw(ptr, extent.len(), Place::Host, Access::Shared, Arc::clone(&self.0) as _) }
    }

    /// The offset of these bytes in the mapping, if all of them lie in it.
    pub fn offset_of(&self, buffer: &Buffer) -> Option<usize> {
        let offset = buffer.as_ptr().addr().checked_sub(self.0.0.mapping.base().addr().get())?;
        (offset.checked_add(buffer.len())? <= self.byte_size()).then_some(offset)
    }

    /// Whether `buffer` begins with the byte at this offset.
    pub fn starts(&self, offset: usize, buffer: &Buffer) -> bool {
        self.0.0.mapping.base().addr().get().checked_add(offset) == Some(buffer.as_ptr().addr())
    }
}

/// A mapping in use, and a value that is dropped when the use has ended.
struct HeldWith {
    _mapping: Arc<Held>,
    _with: Arc<dyn Any + Send + Sync>,
}

impl MemoryOwner for HeldWith {}

/// `fault` is not overridden: this process reports lost memory to its server, which knows the region's name and answers the client.
impl MemoryOwner for Held {}

impl std::fmt::Debug for SharedMapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedMapping({} bytes)", self.byte_size())
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use nerite_memory::Reason;

    use super::*;
    use crate::OwnedRegion;

    const PAGE: usize = 4096;

    fn object(name: &str) -> (OwnedRegion, File) {
        let key = format!("/nerite-test-mapped-{name}-{}", std::process::id());
        let region = OwnedRegion::create(&key, 3 * PAGE).unwrap();
        let file = File::options().read(true).write(true).open(format!("/dev/shm{key}")).unwrap();
        (region, file)
    }

    #[test]
    fn shared_memory_is_read_and_written_in_place() {
        let (region, file) = object("place");
        let whole = |len| Extent::new(0, len, 3 * PAGE).unwrap();
        region.slot(whole(PAGE + 4)).write(PAGE, b"abcd", Reason::Model).unwrap();
        let mapped = SharedMapping::map(file.try_clone().unwrap().into(), PAGE as u64, PAGE, true).unwrap();
        let four = Extent::new(0, 4, PAGE).unwrap();
        let read = mapped.buffer(four);
        assert!(mapped.starts(0, &read) && !mapped.starts(4, &read));
        assert_eq!(read.to_private(Reason::Model).private_bytes(), Some(&b"abcd"[..]));
        mapped.slot(four).write(0, b"efgh", Reason::Model).unwrap();
        let seen = region.buffer(Extent::new(PAGE, 4, 3 * PAGE).unwrap());
        assert_eq!(seen.to_private(Reason::Model).private_bytes(), Some(&b"efgh"[..]));
        for (offset, len) in [(1, PAGE), (0, 0), (u64::MAX - 100, PAGE)] {
            assert!(
                SharedMapping::map(file.try_clone().unwrap().into(), offset, len, true).is_err(),
                "{offset}, {len}"
            );
        }
    }

    #[test]
    fn memory_that_is_mapped_to_read_follows_its_writer() {
        let (region, file) = object("to_read");
        let four = Extent::new(0, 4, 3 * PAGE).unwrap();
        let mapped = SharedMapping::map_to_read(file.into(), 0, 3 * PAGE, true).unwrap();
        for text in [b"abcd", b"efgh"] {
            region.slot(four).write(0, text, Reason::Model).unwrap();
            assert_eq!(mapped.buffer(four).to_private(Reason::Model).private_bytes(), Some(&text[..]));
        }
        let write = std::panic::AssertUnwindSafe(|| mapped.slot(four));
        assert!(std::panic::catch_unwind(write).is_err());
    }

    #[test]
    fn lost_memory_is_reported_and_reads_as_zeros() {
        let (_region, file) = object("gone");
        let mapped = SharedMapping::map(file.try_clone().unwrap().into(), 0, 3 * PAGE, true).unwrap();
        let buffer = mapped.buffer(Extent::new(2 * PAGE, 4, 3 * PAGE).unwrap());
        assert_eq!(mapped.lost_at(), None);
        file.set_len(PAGE as u64).unwrap();
        assert_eq!(buffer.to_private(Reason::Model).private_bytes(), Some(&[0u8; 4][..]));
        assert_eq!(mapped.lost_at().map(|at| at / PAGE), Some(2));
        // An object that is shorter than requested is handled in the same way.
        let late = SharedMapping::map(file.into(), 0, 3 * PAGE, true).unwrap();
        late.slot(Extent::new(PAGE, 1, 3 * PAGE).unwrap()).write(0, b"x", Reason::Model).unwrap();
        assert!(late.lost_at().is_some());
    }
}
