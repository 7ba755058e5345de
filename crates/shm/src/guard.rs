//! Who turns a fault in a region into an error of its requests instead of the end of the process?
//!
//! ```text
//!  registration ─► mmap ─► watch ──► table: start, end, lost_at ◄── find ── SIGBUS handler, on whichever thread touched
//!  last user    ─► clear the entry ─► munmap        │                         1. lost_at := where
//!                                                   ▼                         2. anonymous pages over the region
//!                                  fault(), locate: "can no longer be used"   3. return: the access goes on, on zeros
//! ```
//!
//! A peer can shrink its object, or leave it without memory in a full `/dev/shm`, at any moment, so no check before an
//! access can replace this. Leases cannot shrink, but have no memory either where the system refuses more (strict overcommit). Note that `lost_at` is set before the pages appear: whoever read a zero that the peer did
//! not write finds the region lost when it asks afterwards.

mod signal;
mod table;

use std::io;

use crate::limits::WATCHED_MAX;
use table::{Entry, Table};

static TABLE: Table<WATCHED_MAX> = Table::new();

/// A range of addresses in which a fault ends no process. It must be dropped before the range is unmapped: afterwards the
/// kernel may give the addresses to somebody else.
pub(crate) struct Watch {
    entry: &'static Entry,
    index: usize,
}

/// Watches `len` bytes, whole pages, from `start` on. The first call installs the handler, so that a process without
/// regions and leases keeps the signal as it was.
///
/// # Safety
/// The range is a mapping of the caller's that holds nothing but a peer's memory, and stays one until the Watch is dropped:
/// a fault replaces all of it.
pub(crate) unsafe fn watch(start: usize, len: usize) -> io::Result<Watch> {
    signal::install()?;
    let (index, entry) = TABLE.enter(start, start + len).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
    Ok(Watch { entry, index })
}

impl Watch {
    /// Offset of the first touched byte that had no memory; `None` while there was none.
    pub(crate) fn lost_at(&self) -> Option<usize> {
        self.entry.lost_at()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        TABLE.leave(self.index);
    }
}
