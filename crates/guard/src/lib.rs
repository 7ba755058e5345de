//! How does a fault that a peer caused become an error instead of the end of the process?
//!
//! Shared memory that disappears while it is used:
//!
//! ```text
//!  mapping   ─► mmap ─► watch ─────► table: start, end, lost_at ◄── find ── SIGBUS handler, on the thread of the access
//!  last user ─► clear the entry ─► munmap           │                         1. lost_at := offset
//!                                                   ▼                         2. the mapping's pages move elsewhere
//!                            lost_at(): "can no longer be used"               3. anonymous pages over the mapping
//!                                                                             4. return: the access reads zeros
//! ```
//!
//! A peer can shrink its object at any moment, or a full `/dev/shm` can leave the object without memory. So no check before an access can replace
//! the guard. Leases cannot shrink, but can lack memory too if the system refuses it (strict overcommit). `lost_at` is set before the pages are
//! replaced. So code that read a zero that the peer did not write finds the mapping lost when it checks afterwards.
//!
//! Divisions by integers of a peer that a library does not check: [`arithmetic`].
//!
//! The crate is used in two ways. The server calls [`watch`] and [`count_traps`]. The processes of Python models load it as a library of six C
//! functions ([`library`]). It has no `std` for their sake: a library in a foreign process should be small, allocate nothing and start no thread.
//!
//! ```
//! use nerite_guard::{Errno, Traps, count_traps, install_traps};
//!
//! static TRAPS: Traps = Traps::new();
//! install_traps()?;
//! // A library whose divisors come from a client would run here. 6 / 3 has a result, so nothing is counted.
//! assert_eq!(count_traps(&TRAPS, || 6 / 3)?, 2);
//! assert_eq!(TRAPS.count(), 0);
//! # Ok::<(), Errno>(())
//! ```

#![no_std]

#[cfg(test)]
extern crate std;

#[cfg(nerite_guard_library)]
mod alone;
pub mod arithmetic;
#[cfg(target_arch = "x86_64")]
mod division;
mod fault;
pub mod library;
mod parent;
mod replacement;
mod signal;
mod table;
#[cfg(target_arch = "x86_64")]
mod threads;
mod unmapping;

pub use arithmetic::{DIVISIONS_TRAP, Traps, count_traps, install_traps};
use table::{Entry, Moved, Table};

/// The most mappings that can be watched at one time. Linux allows a process 65,530 mappings by default, and some have other uses.
pub const WATCHED_MAX: usize = 57_344;

/// The most mappings that are replaced and whose former pages are mapped elsewhere at one time.
const MOVED_MAX: usize = 4096;

const _: () = assert!(WATCHED_MAX + MOVED_MAX + 4000 < 65_530, "the allocator needs mappings too");

static TABLE: Table<WATCHED_MAX> = Table::new();

/// A range of addresses in which a fault does not end the process. It must be dropped before the range is unmapped, because the kernel may
/// reuse the addresses afterwards. Its drop takes as long as that of the range if a fault moved the range's pages elsewhere: it unmaps them.
pub struct Watch {
    entry: &'static Entry,
    index: usize,
}

/// The system's error number, if the guard could not be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// Watches `len` bytes from `start` on, which are whole pages. The first call installs the handler, so a process without regions and leases keeps
/// its own. Later calls make sure that the handler is still called first.
///
/// # Safety
/// The range is a mapping of the caller with only a peer's memory, and stays one until the Watch is dropped. A fault replaces all of it.
pub unsafe fn watch(start: usize, len: usize) -> Result<Watch, Errno> {
    fault::install()?;
    let end = start.checked_add(len).ok_or(Errno(libc::EINVAL))?;
    let (index, entry) = TABLE.enter(start, end).ok_or(Errno(libc::ENOMEM))?;
    Ok(Watch { entry, index })
}

impl Watch {
    /// The offset of the first accessed byte that had no memory. `None` if all had.
    pub fn lost_at(&self) -> Option<usize> {
        self.entry.lost_at()
    }

    /// Notes that another process, which has the same memory mapped, found none at that offset. The mapping of this process is unchanged.
    pub fn lose(&self, at: usize) {
        self.entry.lose(at);
    }

    /// The pages that a fault moved out of the range, unless they were taken before. Nobody uses them.
    pub fn take_moved(&self) -> Option<MovedPages> {
        self.entry.take_moved().map(MovedPages)
    }

    /// Whether the whole range is zeros and what was written to it since a fault.
    pub fn is_replaced(&self) -> bool {
        self.entry.is_replaced()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The range is used no more, so no handler moves pages of it now.
        let moved = self.take_moved();
        TABLE.leave(self.index);
        drop(moved);
    }
}

/// The former pages of a range that was replaced. Dropping it unmaps them, which takes as long as that of the range, and longer if they were the last mapping of
/// their object.
pub struct MovedPages(Moved);

impl Drop for MovedPages {
    fn drop(&mut self) {
        replacement::unmap_moved(self.0);
    }
}
