//! How is memory created whose size cannot change?

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::posix::{PosixMapping, page_bytes};
use crate::window::Window;

use super::limits::HUGE_PAGE_BYTES;

/// Without the first seal a client could make the server fault. Without the second it could exceed its quota. Without the third it could add a seal against
/// writing, and the server's next mapping would fail.
pub(super) const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A sealed anonymous file of `byte_size` zeros, and its mapping. Pages are allocated at their first access.
pub(super) fn make(byte_size: usize) -> io::Result<(File, PosixMapping)> {
    let file = create()?;
    file.set_len(byte_size as u64)?;
    // SAFETY: the descriptor is open while `file` lives; the call reads no memory.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mapping = map(&file, byte_size)?;
    Ok((file, mapping))
}

/// Maps a whole file of `byte_size` bytes.
pub(super) fn map(file: &File, byte_size: usize) -> io::Result<PosixMapping> {
    let window = Window::new(0, byte_size as u64, byte_size as u64, page_bytes())
        .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let mapping = PosixMapping::new(file, window)?;
    if fits_huge_pages(byte_size) {
        // If the system supports huge pages for shared memory, the first copy to a lease of 64 MiB takes a fifth of the time, and freeing it a
        // sixtieth. Later copies take the same time (examples/huge_leases.rs).
        advise(&mapping, libc::MADV_HUGEPAGE);
    }
    Ok(mapping)
}

/// Whether the last huge page wastes at most a quarter of `byte_size`, which is also the most that size classes waste.
fn fits_huge_pages(byte_size: usize) -> bool {
    byte_size.next_multiple_of(HUGE_PAGE_BYTES) - byte_size <= byte_size / 4
}

/// The seals of a file. An error if the file does not support seals.
pub(super) fn seals(file: &File) -> io::Result<libc::c_int> {
    // SAFETY: the descriptor is open while `file` lives; the call reads no memory.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 { Err(io::Error::last_os_error()) } else { Ok(seals) }
}

/// Returns the pages to the system, even if other processes still have the file mapped. They read zeros then.
pub(super) fn punch_out(mapping: &PosixMapping) {
    advise(mapping, libc::MADV_REMOVE);
}

/// Gives the system advice about the pages, which it may refuse. Then pages are small, or are freed only with their last mapping.
fn advise(mapping: &PosixMapping, advice: libc::c_int) {
    // SAFETY: the range is a mapping of ours. The advice given here changes how its pages are backed, or makes them zeros, as any other process with
    // the file could. No code relies on the bytes of such a mapping.
    let _ = unsafe { libc::madvise(mapping.base().as_ptr().cast(), mapping.len(), advice) };
}

fn create() -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // Linux before 6.3 does not know MFD_NOEXEC_SEAL, which keeps a client from executing the file.
    for more in [libc::MFD_NOEXEC_SEAL, 0] {
        // SAFETY: the name is a static C string.
        let fd = unsafe { libc::memfd_create(c"nerite-lease".as_ptr(), flags | more) };
        if fd >= 0 {
            // SAFETY: memfd_create has just returned this descriptor, so it is open and nothing else owns it.
            return Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }));
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
    }
    Err(io::Error::from_raw_os_error(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(kib: usize, fits: bool) {
        assert_eq!(fits_huge_pages(kib << 10), fits, "{kib} KiB");
    }

    #[test]
    fn only_sizes_that_fill_huge_pages_get_them() {
        check(4, false);
        check(1024, false);
        check(1792, true);
        check(2048, true);
        check(2560, false);
        check(3072, false);
        check(3584, true);
        check(5120, true);
        check(64 << 10, true);
    }
}
