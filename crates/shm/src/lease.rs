//! How does the server lend its own memory to a client it does not trust?
//!
//! ```text
//!   Pools ── quotas of all, lease name ─► Weak<Lease> (HTTP and gRPC find leases here)
//!     └─ Account, one per session ── lent:  name ─► Lease      the client has it
//!                                    free list: idle leases    came back, for the same session again
//! ```
//!
//! A [`Lease`] is an anonymous memory file, sealed so that nobody can change its size, mapped here and sent to the client
//! by descriptor. It has a name of 128 random bits: who knows it may use it, from any protocol. Its memory goes back to the
//! system when its last user drops it, be that the account, a request in flight or an output on its way.
//!
//! A lease cannot shrink, and where the system has no memory for a page of it, the guard of regions meets the fault here, too.
//!
//! **Whose data is in a lease?** Memory lent to another session is always fresh (zeros), never cleared: a descriptor that was
//! once sent cannot be taken back, so a client may keep its mapping for ever, and clearing would not keep it from reading
//! what the next client writes. Memory that comes back is therefore only ever lent to the session that had it, with the
//! bytes it left there. For the same reason a lease that came back is punched out before it is dropped: the mapping that
//! the client keeps for its next loan is then an empty file. One that never came back is not: the client may still read
//! its last results there when the session, or the server, is gone.
//!
//! ```
//! use nerite_memory::{Extent, Reason};
//! use nerite_shm::{AdoptedLease, LeaseLimits, Pools};
//!
//! let pools = Pools::new(LeaseLimits::default());
//! let account = pools.open();
//! let loan = account.borrow(100)?;
//! let descriptor = loan.descriptor.ok_or("a first loan brings its descriptor")?; // travels by SCM_RIGHTS
//! let size = loan.lease.byte_size();
//!
//! let mine = AdoptedLease::adopt(descriptor, size)?; // the client's side
//! mine.slot(Extent::new(0, 5, size)?).write(0, b"hello", Reason::Model)?;
//!
//! let name = loan.lease.name().to_string(); // lease-4f1c…
//! let found = pools.find(&name).ok_or("it is lent")?;
//! let input = found.buffer(found.locate(0, 5)?);
//! assert_eq!(input.to_private(Reason::Model).private_bytes(), Some(&b"hello"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod adopted;
mod census;
mod class;
mod error;
mod free_list;
mod limits;
mod memfd;
mod name;
mod pools;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

use nerite_cuda::PageLock;
use nerite_memory::{Access, Buffer, Extent, ExtentError, Keep, Place, Share, ShareMark, Slot, Vacant};

use crate::error::ShmError;
use crate::guard::Watch;
use crate::posix::PosixMapping;
use crate::sync::AtomicBool;
use crate::tally::QuotaPermit;

pub use adopted::{AdoptError, AdoptedLease};
pub use error::{LeaseError, LeaseErrorKind};
pub use limits::{LEASE_BYTES_MIN, LEASES_MAX, LEASES_PER_SESSION_MAX};
pub use name::{LeaseName, random_bits};
pub use pools::{Account, BorrowedLease, ClassCounts, LeaseCounts, LeaseLimits, LeaseState, Pools};

use census::Counted;
use pools::Index;

/// Memory of the server that a client has, or had and may have again.
pub struct Lease {
    name: LeaseName,
    /// Before the mapping, because fields drop in order: what is locked must still be mapped.
    lock: Option<PageLock>,
    /// Before the mapping as well: nobody may find the range in the guard's table once it is unmapped.
    watch: Watch,
    mapping: PosixMapping,
    /// Whether a client has it now. What lies in the free list is found by nobody.
    lent: AtomicBool,
    /// Whether the client said that it uses it no more.
    returned: AtomicBool,
    /// The file: the client maps it, and a model's process whose inputs or outputs lie there.
    file: OwnedFd,
    /// Whether the client was sent a descriptor.
    seen: AtomicBool,
    mark: ShareMark,
    index: Weak<Index>,
    /// Last, because fields drop in order: the counts go down after the memory was unmapped.
    _tickets: ([QuotaPermit; 2], Counted),
}

impl Lease {
    /// What requests call it.
    pub fn name(&self) -> LeaseName {
        self.name
    }

    /// Number of bytes: at least what was asked for.
    pub fn byte_size(&self) -> usize {
        self.mapping.len()
    }

    /// Part of the lease, by the rules and in the words that hold for regions.
    pub fn locate(&self, offset: u64, byte_size: u64) -> Result<Extent, ShmError> {
        let name = || self.name.to_string();
        let limit = self.mapping.len();
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

    /// Part of the lease as an input, in place. The client may write it at any moment, so the Buffer is `Access::Shared`.
    ///
    /// # Panics
    /// If the extent was made for a longer thing.
    pub fn buffer(self: &Arc<Lease>, extent: Extent) -> Buffer {
        buffer_of(&self.mapping, extent, self.place(), Arc::clone(self) as _)
    }

    /// Part of the lease as the place for an output.
    ///
    /// # Panics
    /// If the extent was made for a longer thing.
    pub fn slot(self: &Arc<Lease>, extent: Extent) -> Slot<Vacant> {
        slot_of(&self.mapping, extent, self.place(), Arc::clone(self) as _)
    }

    /// Where its bytes are.
    pub fn place(&self) -> Place {
        if self.lock.is_some() { Place::Pinned } else { Place::Host }
    }

    /// Whether `buffer` begins with this lease's first byte.
    pub fn starts(&self, buffer: &Buffer) -> bool {
        std::ptr::eq(buffer.as_ptr(), self.mapping.base().as_ptr())
    }

    /// The way for the client to map it, if it was not sent yet.
    fn take_file(&self) -> io::Result<Option<OwnedFd>> {
        if self.seen.swap(true, Ordering::AcqRel) {
            return Ok(None);
        }
        // Without a descriptor to send the client has not seen it after all.
        self.file.try_clone().map(Some).inspect_err(|_| self.seen.store(false, Ordering::Release))
    }

    /// Whether the client has never had it.
    fn is_unseen(&self) -> bool {
        !self.seen.load(Ordering::Acquire)
    }

    /// Whether nobody but the account has it, and its memory is all there.
    fn is_idle(self: &Arc<Lease>) -> bool {
        if Arc::strong_count(self) != 1 || self.watch.lost_at().is_some() {
            return false;
        }
        // What its last user wrote there comes before what its next one does.
        fence(Ordering::Acquire);
        true
    }

    fn is_lent(&self) -> bool {
        self.lent.load(Ordering::Acquire)
    }

    fn set_lent(&self, lent: bool) {
        self.lent.store(lent, Ordering::Release);
    }
}

impl Keep for Lease {
    fn fault(&self) -> Option<String> {
        let (name, at) = (self.name, self.watch.lost_at()?);
        Some(format!(
            "lease '{name}' can no longer be used: the system had no memory for it when it was touched at offset {at}; return \
             it and borrow another"
        ))
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
        self.mapping.base()
    }

    fn byte_size(&self) -> usize {
        self.mapping.len()
    }

    fn open(&self) -> io::Result<(OwnedFd, u64)> {
        Ok((self.file.try_clone()?, 0))
    }

    fn is_sealed(&self) -> bool {
        true
    }

    fn lose(&self, at: usize) {
        self.watch.lose(at);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(index) = self.index.upgrade() {
            index.remove(self.name);
        }
        if *self.returned.get_mut() {
            memfd::punch_out(&self.mapping);
        }
    }
}

impl std::fmt::Debug for Lease {
    /// Without the name: who knows it may use the memory, and logs are read by many.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lease({} bytes)", self.byte_size())
    }
}

/// Bytes of a mapping that `keep` holds, readable.
fn buffer_of(mapping: &PosixMapping, extent: Extent, place: Place, keep: Arc<dyn Keep>) -> Buffer {
    assert!(extent.end() <= mapping.len(), "extent up to {} of {}", extent.end(), mapping.len());
    // SAFETY: the extent ends within the mapping, by the assertion.
    let ptr = unsafe { mapping.base().add(extent.offset()) };
    // SAFETY: a memory file's bytes are initialised by the kernel and, its size being sealed, stay there while `keep` holds
    // the mapping, which both callers pass as the owner of `mapping`; Shared claims nothing about other writers.
    unsafe { Buffer::from_raw(ptr, extent.len(), place, Access::Shared, keep) }
}

/// Bytes of a mapping that `keep` holds, writable.
fn slot_of(mapping: &PosixMapping, extent: Extent, place: Place, keep: Arc<dyn Keep>) -> Slot<Vacant> {
    assert!(extent.end() <= mapping.len(), "extent up to {} of {}", extent.end(), mapping.len());
    // SAFETY: the extent ends within the mapping, by the assertion.
    let ptr = unsafe { mapping.base().add(extent.offset()) };
    // SAFETY: as in `buffer_of`, and the mapping is writable.
    unsafe { Slot::from_raw(ptr, extent.len(), place, Access::Shared, keep) }
}
