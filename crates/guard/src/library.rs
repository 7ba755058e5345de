//! Which four C functions does a process call that has the guard as a library?
//!
//! They are names of a shared library only where the crate is built as one (`--cfg nerite_guard_library`, see
//! `crates/python/build.rs`); to the server they are functions that nobody calls. All may be called from any thread. None
//! allocates, and none panics.

use core::ptr;

use libc::{c_int, c_void};

use crate::{Errno, TABLE, fault, signal};

/// Makes the guard the first to be asked about a SIGBUS, and says 0 or an errno. It may be called again at any time: where
/// another handler has come before it, that one is asked second from then on.
#[cfg_attr(nerite_guard_library, unsafe(no_mangle))]
pub extern "C" fn nerite_guard_install() -> c_int {
    match fault::install() {
        Ok(()) => 0,
        Err(Errno(number)) => number,
    }
}

/// Maps `len` bytes from `file_offset` on, a multiple of the page's size, of the object open as `fd`: shared, readable,
/// writable and watched. Null with errno set where that cannot be had. The descriptor is not kept.
#[cfg_attr(nerite_guard_library, unsafe(no_mangle))]
pub extern "C" fn nerite_guard_map(fd: c_int, file_offset: usize, len: usize) -> *mut c_void {
    match map(fd, file_offset, len) {
        Ok(start) => start,
        Err(error) => {
            signal::set_errno(error);
            ptr::null_mut()
        }
    }
}

/// Ends the watch of what [`nerite_guard_map`] gave, then the mapping, and says 0 or an errno: `EINVAL` for a range that it
/// did not give, or that has been given back. `len` is the same as then.
///
/// # Safety
/// Nobody touches the range any more.
#[cfg_attr(nerite_guard_library, unsafe(no_mangle))]
pub unsafe extern "C" fn nerite_guard_unmap(start: *mut c_void, len: usize) -> c_int {
    let at = start.expose_provenance();
    let Some(bytes) = pages(len) else { return libc::EINVAL };
    let Some(end) = at.checked_add(bytes) else { return libc::EINVAL };
    // First, so that nobody finds the range in the table when the kernel gives it to another.
    if !TABLE.leave_range(at, end) {
        return libc::EINVAL;
    }
    // SAFETY: the table had exactly this range, so `map` made it and nobody has unmapped it; the caller uses it no more.
    if unsafe { libc::munmap(start, len) } == 0 { 0 } else { signal::errno().0 }
}

/// Offset of the first byte that was touched and had no memory; -1 while there was none, and for what is not a start that
/// [`nerite_guard_map`] gave. It reads a few words for each mapping there is.
#[cfg_attr(nerite_guard_library, unsafe(no_mangle))]
pub extern "C" fn nerite_guard_lost_at(start: *const c_void) -> isize {
    let found = TABLE.find(start.addr());
    let lost = found.filter(|(_, first, _)| *first == start.addr()).and_then(|(entry, ..)| entry.lost_at());
    lost.and_then(|at| isize::try_from(at).ok()).unwrap_or(-1)
}

fn map(fd: c_int, file_offset: usize, len: usize) -> Result<*mut c_void, Errno> {
    let offset = libc::off_t::try_from(file_offset).map_err(|_| Errno(libc::EOVERFLOW))?;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // First, so that a process which cannot have the guard maps nothing; it also learns the size of a page.
    fault::install()?;
    let bytes = pages(len).ok_or(Errno(libc::EINVAL))?;
    // SAFETY: a fresh mapping at an address of the kernel's choice (null, no MAP_FIXED) replaces no memory of anybody's.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, prot, libc::MAP_SHARED, fd, offset) };
    if start == libc::MAP_FAILED {
        return Err(signal::errno());
    }
    let at = start.expose_provenance();
    // A range that exists does not wrap.
    if TABLE.enter(at, at.saturating_add(bytes)).is_none() {
        // SAFETY: mapped above, and nobody was told.
        unsafe { libc::munmap(start, len) };
        return Err(Errno(libc::ENOMEM));
    }
    Ok(start)
}

/// The whole pages that `len` bytes take; `None` for no bytes and for more than there are addresses.
fn pages(len: usize) -> Option<usize> {
    let bytes = len.checked_add(fault::page_bytes() - 1)?;
    let bytes = bytes - bytes % fault::page_bytes();
    (bytes > 0).then_some(bytes)
}
