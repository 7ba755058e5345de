//! How does a fault that a peer caused become an error instead of the end of the process?
//!
//! Shared memory that disappears while it is used:
//!
//! ```text
//!  mapping   ─► mmap ─► watch ─────► table: start, end, lost_at ◄── find ── SIGBUS handler, on the thread of the access
//!  last user ─► clear the entry ─► munmap           │                         1. lost_at := offset
//!                                                   ▼                         2. anonymous pages over the mapping
//!                            lost_at(): "can no longer be used"               3. return: the access reads zeros
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
mod signal;
mod table;
#[cfg(target_arch = "x86_64")]
mod threads;

pub use arithmetic::{DIVISIONS_TRAP, Traps, count_traps, install_traps};
use table::{Entry, Table};

/// The most mappings that can be watched at one time. Linux allows a process 65,530 mappings by default, and some have other uses.
pub const WATCHED_MAX: usize = 57_344;

static TABLE: Table<WATCHED_MAX> = Table::new();

/// A range of addresses in which a fault does not end the process. It must be dropped before the range is unmapped, because the kernel may
/// reuse the addresses afterwards.
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
}

impl Drop for Watch {
    fn drop(&mut self) {
        TABLE.leave(self.index);
    }
}
