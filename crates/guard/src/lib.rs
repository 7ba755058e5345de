//! Who turns a fault of a peer's making into an error instead of the end of the process?
//!
//! Memory of a peer's that goes away while it is used:
//!
//! ```text
//!  mapping   ─► mmap ─► watch ─────► table: start, end, lost_at ◄── find ── SIGBUS handler, on whichever thread touched
//!  last user ─► clear the entry ─► munmap           │                         1. lost_at := where
//!                                                   ▼                         2. anonymous pages over the mapping
//!                            lost_at(): "can no longer be used"               3. return: the access goes on, on zeros
//! ```
//!
//! A peer can shrink its object, or leave it without memory in a full `/dev/shm`, at any moment, so no check before an
//! access can replace this. Leases cannot shrink, but have no memory either where the system refuses more (strict
//! overcommit). Note that `lost_at` is set before the pages appear: whoever read a zero that the peer did not write finds
//! the mapping lost when it asks afterwards.
//!
//! Integers of a peer's that a library divides without looking: [`arithmetic`].
//!
//! The crate is used twice: the server calls [`watch`] and [`count_traps`], and the processes that run Python models load it as a library
//! of four C functions ([`library`]). That is why it has no `std`: what is loaded into other people's processes allocates
//! nothing, starts nothing and is small.
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
mod signal;
mod table;
#[cfg(target_arch = "x86_64")]
mod threads;

pub use arithmetic::{DIVISIONS_TRAP, Traps, count_traps, install_traps};
use table::{Entry, Table};

/// Mappings that can be watched at one time. Linux gives a process 65,530 mappings by default, and others need some.
pub const WATCHED_MAX: usize = 57_344;

static TABLE: Table<WATCHED_MAX> = Table::new();

/// A range of addresses in which a fault ends no process. It must be dropped before the range is unmapped: afterwards the
/// kernel may give the addresses to somebody else.
pub struct Watch {
    entry: &'static Entry,
    index: usize,
}

/// Why there is no guard: the number of the system's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// Watches `len` bytes, whole pages, from `start` on. The first call installs the handler, so that a process without
/// regions and leases keeps the signal as it was; later ones see to it that the handler is still the first to be asked.
///
/// # Safety
/// The range is a mapping of the caller's that holds nothing but a peer's memory, and stays one until the Watch is dropped:
/// a fault replaces all of it.
pub unsafe fn watch(start: usize, len: usize) -> Result<Watch, Errno> {
    fault::install()?;
    let end = start.checked_add(len).ok_or(Errno(libc::EINVAL))?;
    let (index, entry) = TABLE.enter(start, end).ok_or(Errno(libc::ENOMEM))?;
    Ok(Watch { entry, index })
}

impl Watch {
    /// Offset of the first touched byte that had no memory; `None` while there was none.
    pub fn lost_at(&self) -> Option<usize> {
        self.entry.lost_at()
    }

    /// Says that another process which has the same memory mapped found none at that offset. What is mapped here stays.
    pub fn lose(&self, at: usize) {
        self.entry.lose(at);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        TABLE.leave(self.index);
    }
}
