//! Which six C functions does the guard offer as a shared library?
//!
//! They are exported only if the crate is built as a shared library (`--cfg nerite_guard_library`, see `crates/python/build.rs`). The server does
//! not call them. All may be called from any thread. None allocates, and none panics.

use core::ptr;

use libc::{c_int, c_void};

use crate::{Errno, TABLE, fault, parent, replacement, signal, unmapping};

/// Makes the kernel call the guard first for a SIGBUS. Returns 0 or an errno. It may be called again at any time: if another handler was installed
/// since, the guard is called before it from then on.
#[cfg_attr(nerite_guard_library, unsafe(no_mangle))]
pub extern "C" fn nerite_guard_install() -> c_int {
    match fault::install() {
        Ok(()) => 0,
        Err(Errno(number)) => number,
    }
}

/// Maps `len` bytes of the object `fd` from `file_offset` on, which is a multiple of the page size. The mapping is shared, readable, writable and
/// watched. Null, with errno set, on failure. The descriptor is not kept.
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

/// Ends the watch of a mapping of [`nerite_guard_map`] and unmaps it. Returns 0 or an errno: `EINVAL` for a range that is not such a mapping, or was
/// unmapped already. `len` is the same as when it was mapped.
///
/// # Safety
/// The range is not used any more.
#[cfg_attr(nerite_guard_library, unsafe(no_mangle))]
pub unsafe extern "C" fn nerite_guard_unmap(start: *mut c_void, len: usize) -> c_int {
    let at = start.expose_provenance();
    let Some(bytes) = pages(len) else { return libc::EINVAL };
    let Some(end) = at.checked_add(bytes) else { return libc::EINVAL };
    // Before the range is unmapped, because the kernel may reuse the addresses, and the table must not have them then.
    let Some(left) = TABLE.leave_range(at, end) else { return libc::EINVAL };
    if let Some(moved) = left.moved {
        replacement::unmap_moved(moved);
    }
    // SAFETY: the table had exactly this range, so `map` made it and nobody has unmapped it. The caller uses it no more.
    match unsafe { unmapping::unmap_in_pieces(start, len) } {
        Ok(()) => 0,
        Err(Errno(number)) => number,
    }
}

/// The offset of the first accessed byte that had no memory. -1 if all had, and if `start` is not a mapping of [`nerite_guard_map`]. It reads a few
/// words for each mapping.
#[cfg_attr(nerite_guard_library, unsafe(no_mangle))]
pub extern "C" fn nerite_guard_lost_at(start: *const c_void) -> isize {
    let found = TABLE.find(start.addr());
    let lost = found.filter(|(_, first, _)| *first == start.addr()).and_then(|(entry, ..)| entry.lost_at());
    lost.and_then(|at| isize::try_from(at).ok()).unwrap_or(-1)
}

/// The address of the number of faults that the guard has handled in this process. While it is 0, no mapping has lost memory, so callers need not
/// check each mapping. The address stays valid as long as the library is loaded.
#[cfg_attr(nerite_guard_library, unsafe(no_mangle))]
pub extern "C" fn nerite_guard_faults() -> *const usize {
    fault::FAULTS.as_ptr().cast_const()
}

/// Makes the kernel end this process, and its group if it leads one, when the thread that started it ends. Returns 0 or an errno.
#[cfg_attr(nerite_guard_library, unsafe(no_mangle))]
pub extern "C" fn nerite_guard_end_with_parent() -> c_int {
    match parent::end_with_parent() {
        Ok(()) => 0,
        Err(Errno(number)) => number,
    }
}

fn map(fd: c_int, file_offset: usize, len: usize) -> Result<*mut c_void, Errno> {
    let offset = libc::off_t::try_from(file_offset).map_err(|_| Errno(libc::EOVERFLOW))?;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // Before mapping: a process without the guard must map nothing. This also finds the page size.
    fault::install()?;
    let bytes = pages(len).ok_or(Errno(libc::EINVAL))?;
    // SAFETY: a fresh mapping at an address of the kernel's choice (null, no MAP_FIXED) replaces no memory of anybody's.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, prot, libc::MAP_SHARED, fd, offset) };
    if start == libc::MAP_FAILED {
        return Err(signal::errno());
    }
    let at = start.expose_provenance();
    // The addition cannot overflow, because the mapping exists.
    if TABLE.enter(at, at.saturating_add(bytes)).is_none() {
        // SAFETY: mapped above, and nobody was told.
        unsafe { libc::munmap(start, len) };
        return Err(Errno(libc::ENOMEM));
    }
    Ok(start)
}

/// `len` rounded up to whole pages. `None` for 0 bytes and for more than the address space.
fn pages(len: usize) -> Option<usize> {
    let bytes = len.checked_add(fault::page_bytes() - 1)?;
    let bytes = bytes - bytes % fault::page_bytes();
    (bytes > 0).then_some(bytes)
}
