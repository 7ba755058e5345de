//! How does the server lend its own memory to an untrusted client?
//!
//! ```text
//!   Pools ── quotas of all sessions, lease name ─► Weak<Lease> (HTTP and gRPC find leases here)
//!     └─ Account, one per session ── lent:  name ─► Lease      borrowed by the client
//!                                    free list: idle leases    returned, for the same session again
//! ```
//!
//! A [`Lease`] is an anonymous memory file. It is sealed so that its size cannot change, mapped here, and sent to the client as a descriptor. Its
//! name has 128 random bits: any client that knows it may use the lease, over any protocol. Its memory is freed when its last user drops it: the
//! account, a request in flight, or an output that is being sent.
//!
//! A lease cannot shrink. If the system has no memory for one of its pages, the guard handles the fault as for regions.
//!
//! **Whose data is in a lease?** Memory that is lent to another session is always new (zeros), never reused. A descriptor that was sent cannot be
//! revoked, so a client may keep its mapping for ever. Clearing the memory would not prevent it from reading what the next client writes. So a returned
//! lease is only lent to the same session again, with the bytes that it left there. For the same reason the pages of a returned lease are freed
//! before it is dropped: the mapping that the client may have kept is an empty file then. The pages of a lease that was not returned are not freed:
//! the client may still read its last results there when the session or the server has ended.
//!
//! ```
//! use nerite_memory::{Extent, Reason};
//! use nerite_shm::{AdoptedLease, LeaseLimits, Pools};
//!
//! let pools = Pools::new(LeaseLimits::default());
//! let account = pools.open();
//! let borrowed = account.borrow(100)?;
//! let descriptor = borrowed.descriptor.ok_or("the first time, a lease comes with its descriptor")?; // travels by SCM_RIGHTS
//! let size = borrowed.lease.byte_size();
//!
//! let mine = AdoptedLease::adopt(descriptor, size)?; // the client's side
//! mine.slot(Extent::new(0, 5, size)?).write(0, b"hello", Reason::Model)?;
//!
//! let name = borrowed.lease.name().to_string(); // lease-4f1c…
//! let found = pools.find(&name).ok_or("the lease is lent")?;
//! let input = found.buffer(found.locate(0, 5)?);
//! assert_eq!(input.to_private(Reason::Model).private_bytes(), Some(&b"hello"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod adopted;
mod class;
mod error;
mod free_list;
mod limits;
mod memfd;
mod name;
mod pools;
mod size_counts;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

use nerite_cuda::PageLock;
use nerite_memory::{Access, Buffer, Extent, ExtentError, MemoryOwner, Place, Share, ShareMark, Slot, Vacant};

use crate::deferred::{Deferred, OwnerId, Unmap};
use crate::error::ShmError;
use crate::guard::Watch;
use crate::mapped_counts::QuotaPermit;
use crate::posix::PosixMapping;
use crate::sync::AtomicBool;

pub use adopted::{AdoptError, AdoptedLease};
pub use error::{LeaseError, LeaseErrorKind};
pub use limits::{LEASE_BYTES_MIN, LEASES_MAX, LEASES_PER_SESSION_MAX};
pub use name::{LeaseName, random_bits};
pub use pools::{Account, BorrowedLease, ClassCounts, LeaseCounts, LeaseLimits, LeaseState, Pools};

use pools::Index;
use size_counts::Counted;

/// Memory of the server that a client has borrowed, or has returned and may borrow again.
pub struct Lease {
    name: LeaseName,
    memory: Deferred<LeaseMemory>,
    /// Whether a client has it now. Leases in the free list cannot be found by name.
    lent: AtomicBool,
    /// Whether the client returned it.
    returned: AtomicBool,
    /// Whether its descriptor was sent to the client.
    seen: AtomicBool,
    mark: ShareMark,
    index: Weak<Index>,
}

/// The parts of a lease that exist until it is unmapped.
struct LeaseMemory {
    /// Before the mapping, because fields drop in order: locked memory must still be mapped.
    lock: Option<PageLock>,
    /// Before the mapping as well: the range must leave the guard's table before it is unmapped.
    watch: Watch,
    mapping: PosixMapping,
    /// The file. The client maps it, and so does a model's process that reads or writes tensors there. The kernel frees the pages when the file is closed
    /// and unmapped everywhere.
    file: OwnedFd,
    /// Whether dropping this value frees the pages even if the client has kept its mapping.
    frees_pages: bool,
    /// The permits and the count are last, because fields drop in order: the counts are decreased after the memory was unmapped.
    own_permit: QuotaPermit,
    _common: (QuotaPermit, Counted),
}

impl Unmap for LeaseMemory {
    fn byte_size(&self) -> usize {
        self.mapping.len()
    }

    fn owner(&self) -> OwnerId {
        self.own_permit.owner()
    }

    fn needs_driver(&self) -> bool {
        self.lock.is_some()
    }
}

impl Drop for LeaseMemory {
    fn drop(&mut self) {
        if self.frees_pages {
            memfd::punch_out(&self.mapping);
        }
    }
}

impl Lease {
    /// The name that requests use.
    pub fn name(&self) -> LeaseName {
        self.name
    }

    /// Number of bytes: at least as many as requested.
    pub fn byte_size(&self) -> usize {
        self.memory.mapping.len()
    }

    /// A part of the lease, by the same rules and with the same error texts as for regions.
    pub fn locate(&self, offset: u64, byte_size: u64) -> Result<Extent, ShmError> {
        let name = || self.name.to_string();
        let limit = self.memory.mapping.len();
        if offset >= limit as u64 {
            return Err(ShmError::OffsetBeyond { name: name(), offset, region_bytes: limit as u64 });
        }
        // u64 and usize are the same width: `limits` asserts it.
        Extent::new(offset as usize, byte_size as usize, limit).map_err(|error| match error {
            ExtentError::Overflow { .. } => ShmError::Overflow { name: name(), offset, byte_size },
            ExtentError::Beyond { .. } => {
                ShmError::EndBeyond { name: name(), offset, byte_size, region_bytes: limit as u64 }
            }
        })
    }

    /// Part of the lease as an input, in place. The client may write to it at any moment, so the Buffer is `Access::Shared`.
    ///
    /// # Panics
    /// If the extent was made for a longer range.
    pub fn buffer(self: &Arc<Lease>, extent: Extent) -> Buffer {
        buffer_of(&self.memory.mapping, extent, self.place(), Arc::clone(self) as _)
    }

    /// Part of the lease as the place of an output.
    ///
    /// # Panics
    /// If the extent was made for a longer range.
    pub fn slot(self: &Arc<Lease>, extent: Extent) -> Slot<Vacant> {
        slot_of(&self.memory.mapping, extent, self.place(), Arc::clone(self) as _)
    }

    /// What kind of memory the bytes lie in.
    pub fn place(&self) -> Place {
        if self.memory.lock.is_some() { Place::Pinned } else { Place::Host }
    }

    /// Whether `buffer` begins with this lease's first byte.
    pub fn starts(&self, buffer: &Buffer) -> bool {
        std::ptr::eq(buffer.as_ptr(), self.memory.mapping.base().as_ptr())
    }

    /// The descriptor with which the client maps the lease, if it was not sent yet.
    fn take_file(&self) -> io::Result<Option<OwnedFd>> {
        if self.seen.swap(true, Ordering::AcqRel) {
            return Ok(None);
        }
        // If the descriptor cannot be duplicated, nothing is sent, so the mark is taken back.
        self.memory.file.try_clone().map(Some).inspect_err(|_| self.seen.store(false, Ordering::Release))
    }

    /// Whether its descriptor was never sent to the client.
    fn is_unseen(&self) -> bool {
        !self.seen.load(Ordering::Acquire)
    }

    /// Whether only the account holds the lease, and none of its memory was lost.
    fn is_idle(self: &Arc<Lease>) -> bool {
        if !self.is_unused() || self.memory.watch.lost_at().is_some() {
            return false;
        }
        // Orders the last user's writes before those of the next user.
        fence(Ordering::Acquire);
        true
    }

    /// Whether only the account holds the lease, so that its memory is unmapped when the account drops it.
    fn is_unused(self: &Arc<Lease>) -> bool {
        Arc::strong_count(self) == 1
    }

    /// Whether a client has it now. A returned lease may be lent again later, to the same session.
    pub fn is_lent(&self) -> bool {
        self.lent.load(Ordering::Acquire)
    }

    fn set_lent(&self, lent: bool) {
        self.lent.store(lent, Ordering::Release);
    }
}

impl MemoryOwner for Lease {
    fn fault(&self) -> Option<String> {
        let (name, at) = (self.name, self.memory.watch.lost_at()?);
        Some(format!(
            "lease '{name}' can no longer be used: the system had no memory for it when it was touched at offset {at}; return \
             it and borrow another"
        ))
    }

    fn held_bytes(&self) -> Option<usize> {
        Some(self.byte_size())
    }

    fn share(&self) -> Option<&dyn Share> {
        Some(self)
    }
}

impl Share for Lease {
    fn mark(&self) -> &ShareMark {
        &self.mark
    }

    fn base(&self) -> NonNull<u8> {
        self.memory.mapping.base()
    }

    fn byte_size(&self) -> usize {
        self.memory.mapping.len()
    }

    fn open(&self) -> io::Result<(OwnedFd, u64)> {
        Ok((self.memory.file.try_clone()?, 0))
    }

    fn is_sealed(&self) -> bool {
        true
    }

    fn lose(&self, at: usize) {
        self.memory.watch.lose(at);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(index) = self.index.upgrade() {
            index.remove(self.name);
        }
        self.memory.frees_pages = *self.returned.get_mut();
    }
}

impl std::fmt::Debug for Lease {
    /// Omits the name: any client that knows it may use the memory, and logs have many readers.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lease({} bytes)", self.byte_size())
    }
}

/// Bytes of a mapping that `keep` holds, for reading.
fn buffer_of(mapping: &PosixMapping, extent: Extent, place: Place, keep: Arc<dyn MemoryOwner>) -> Buffer {
    assert!(extent.end() <= mapping.len(), "extent up to {} of {}", extent.end(), mapping.len());
    // SAFETY: the extent ends within the mapping, by the assertion.
    let ptr = unsafe { mapping.base().add(extent.offset()) };
    // SAFETY: a memory file's bytes are initialised by the kernel. Its size is sealed, so they remain mapped while `keep` holds the mapping. Both
    // callers pass the owner of `mapping` as `keep`. Shared claims nothing about other writers.
    unsafe { Buffer::from_raw(ptr, extent.len(), place, Access::Shared, keep) }
}

/// Bytes of a mapping that `keep` holds, for writing.
fn slot_of(mapping: &PosixMapping, extent: Extent, place: Place, keep: Arc<dyn MemoryOwner>) -> Slot<Vacant> {
    assert!(extent.end() <= mapping.len(), "extent up to {} of {}", extent.end(), mapping.len());
    // SAFETY: the extent ends within the mapping, by the assertion.
    let ptr = unsafe { mapping.base().add(extent.offset()) };
    // SAFETY: as in `buffer_of`, and the mapping is writable.
    unsafe { Slot::from_raw(ptr, extent.len(), place, Access::Shared, keep) }
}
