//! How does a session get a lease?

use std::sync::Arc;

use nerite_memory::ShareMark;

use super::{Account, BorrowedLease};
use crate::deferred::Deferred;
use crate::error::reason;
use crate::gpu::Gpu;
use crate::guard::watch;
use crate::lease::class::class_bytes;
use crate::lease::pools::admit_or_free;
use crate::lease::{Lease, LeaseError, LeaseMemory, LeaseName, memfd};
use crate::mapped_counts::QuotaPermit;
use crate::sync::AtomicBool;

impl Account {
    /// Borrows at least `bytes` bytes: a lease that this session returned, with the bytes that it left there, or a new lease of zeros.
    pub fn borrow(&self, bytes: u64) -> Result<BorrowedLease, LeaseError> {
        self.with_descriptor(self.lend(bytes, 0)?)
    }

    /// As [`Account::borrow`], if that needs neither the memory of idle leases nor a GPU's driver. `None` if it does.
    pub fn borrow_at_once(&self, bytes: u64) -> Result<Option<BorrowedLease>, LeaseError> {
        let size = self.class(bytes)?;
        let lease = match self.lend_idle(size, 0)? {
            Some(lease) => lease,
            // A new lease may be page-locked.
            None if self.pools.has_gpu() => return Ok(None),
            None => match self.admit_at_once(size as u64) {
                Some(permits) => self.lend_fresh(bytes, size, 0, permits)?,
                None => return Ok(None),
            },
        };
        self.with_descriptor(lease).map(Some)
    }

    /// Borrows at least `bytes` bytes for a process of the server, which maps them itself ([`nerite_memory::Share`]). Return them with [`Account::put_back`].
    pub fn take(&self, bytes: u64) -> Result<Arc<Lease>, LeaseError> {
        self.lend(bytes, 0)
    }

    /// As [`Account::borrow`], for an output of a request with the client's tag `tag` (0 for none). The descriptor is kept until the client fetches it.
    pub fn place(&self, bytes: u64, tag: u64) -> Result<Arc<Lease>, LeaseError> {
        self.lend(bytes, tag)
    }

    fn lend(&self, bytes: u64, tag: u64) -> Result<Arc<Lease>, LeaseError> {
        let size = self.class(bytes)?;
        match self.lend_idle(size, tag)? {
            Some(lease) => Ok(lease),
            None => self.lend_fresh(bytes, size, tag, self.admit(size as u64)?),
        }
    }

    fn lend_idle(&self, size: usize, tag: u64) -> Result<Option<Arc<Lease>>, LeaseError> {
        let mut state = self.lock();
        state.check(tag)?;
        // A lease that a request still reads or writes must not be lent again.
        let idle = state.free_list.take(size, Lease::is_idle);
        Ok(idle.inspect(|lease| state.hand_out(lease, tag)))
    }

    fn with_descriptor(&self, lease: Arc<Lease>) -> Result<BorrowedLease, LeaseError> {
        let name = lease.name();
        BorrowedLease::of(lease).inspect_err(|_| self.take_back(name, false))
    }

    /// No lock is held during system calls.
    fn lend_fresh(
        &self,
        bytes: u64,
        size: usize,
        tag: u64,
        permits: [QuotaPermit; 2],
    ) -> Result<Arc<Lease>, LeaseError> {
        let refused = |error: std::io::Error| LeaseError::System { bytes, cause: reason(&error) };
        let (file, mapping) = memfd::make(size).map_err(refused)?;
        let name = LeaseName::random().map_err(refused)?;
        let index = Arc::downgrade(&self.pools.index);
        let what = format!("a lease of {size} bytes");
        // SAFETY: the mapping goes into the LeaseMemory, which drops it after the lock by the order of its fields.
        let lock = unsafe { Gpu::lock(self.pools.gpu.as_ref(), &what, mapping.base(), mapping.len(), false) };
        // SAFETY: the range is what mmap has just made, in whole pages, and contains only the lease. The LeaseMemory unmaps it after `watch` is dropped, by
        // the order of its fields.
        let watch = unsafe { watch(mapping.base().as_ptr().expose_provenance(), mapping.len()) }.map_err(refused)?;
        let [own_permit, common_permit] = permits;
        let common = (common_permit, self.pools.counts.count(size));
        let memory =
            LeaseMemory { lock, watch, mapping, file: file.into(), frees_pages: false, own_permit, _common: common };
        let lease = Arc::new(Lease {
            name,
            memory: Deferred::new(memory),
            lent: AtomicBool::new(true),
            returned: AtomicBool::new(false),
            seen: AtomicBool::new(false),
            mark: ShareMark::new(),
            index,
        });
        let mut state = self.lock();
        state.check(tag)?;
        self.pools.index.insert(&lease);
        state.hand_out(&lease, tag);
        Ok(lease)
    }

    /// Reserves quota for a lease of `size` bytes. If the quota is used up, this first frees idle leases of as many bytes, beginning with this session's. On
    /// a thread that serves connections, large idle leases are unmapped later by another thread, so the quota may still be refused.
    fn admit(&self, size: u64) -> Result<[QuotaPermit; 2], LeaseError> {
        let permit = admit_or_free(self.owner(), || self.admit_own(size), || self.free(size));
        let permit = permit.ok_or_else(|| {
            let (count, used) = self.used();
            LeaseError::SessionFull { bytes: size, used, count, bytes_max: self.bytes_max() }
        })?;
        let common = self.pools.admit(size, self).ok_or_else(|| {
            let counts = self.pools.counts();
            let bytes_max = self.pools.limits().bytes_max;
            LeaseError::PoolsFull { bytes: size, used: counts.bytes, count: counts.leases, bytes_max }
        })?;
        Ok([permit, common])
    }

    /// Reserves quota for a lease of `size` bytes. `None` if idle leases must be freed first.
    fn admit_at_once(&self, size: u64) -> Option<[QuotaPermit; 2]> {
        Some([self.admit_own(size)?, self.pools.admit_at_once(size)?])
    }

    fn admit_own(&self, size: u64) -> Option<QuotaPermit> {
        self.mapped_counts.admit(size).ok()
    }

    fn class(&self, bytes: u64) -> Result<usize, LeaseError> {
        if bytes == 0 {
            return Err(LeaseError::Empty);
        }
        let large = LeaseError::Large { bytes, bytes_max: self.bytes_max() };
        // u64 and usize are the same width: `limits` asserts it.
        class_bytes(bytes as usize).filter(|&size| size as u64 <= self.bytes_max()).ok_or(large)
    }
}
