//! How is memory made whose size nobody can change?

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::posix::{PosixMapping, page_bytes};
use crate::window::Window;

use super::limits::HUGE_PAGE_BYTES;

/// Without the first a client could make the server fault, without the second grow past its quota, without the third add
/// a seal against writing that the server's next mapping would trip over.
pub(super) const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// An anonymous file of `byte_size` zeros, sealed, and its mapping here. Pages come when they are first touched.
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

/// All of a file of `byte_size` bytes.
pub(super) fn map(file: &File, byte_size: usize) -> io::Result<PosixMapping> {
    let window = Window::new(0, byte_size as u64, byte_size as u64, page_bytes())
        .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let mapping = PosixMapping::new(file, window)?;
    if fits_huge_pages(byte_size) {
        // Where the system gives them to shared memory, the first copy to a lease of 64 MiB takes a fifth of the time, and its end
        // a sixtieth; later copies are the same (examples/huge_leases.rs).
        advise(&mapping, libc::MADV_HUGEPAGE);
    }
    Ok(mapping)
}

/// Whether huge pages hold so many bytes with no more room unused than size classes leave at the worst.
fn fits_huge_pages(byte_size: usize) -> bool {
    byte_size.next_multiple_of(HUGE_PAGE_BYTES) - byte_size <= byte_size / 4
}

/// The seals of a file; an error for what cannot have any.
pub(super) fn seals(file: &File) -> io::Result<libc::c_int> {
    // SAFETY: the descriptor is open while `file` lives; the call reads no memory.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 { Err(io::Error::last_os_error()) } else { Ok(seals) }
}

/// Gives the pages back to the system although others may have the file mapped still: to them it reads as zeros.
pub(super) fn punch_out(mapping: &PosixMapping) {
    advise(mapping, libc::MADV_REMOVE);
}

/// Hints may be refused; then pages are small, or go with their last mapping instead of now.
fn advise(mapping: &PosixMapping, advice: libc::c_int) {
    // SAFETY: the range is a mapping of ours. The advice given here changes how its pages are backed, or makes them zeros as
    // any other process with the file could; bytes of such a mapping are never relied upon to stay.
    let _ = unsafe { libc::madvise(mapping.base().as_ptr().cast(), mapping.len(), advice) };
}

fn create() -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // Systems before Linux 6.3 do not know the flag that keeps a client from executing the file.
    for more in [libc::MFD_NOEXEC_SEAL, 0] {
        // SAFETY: the name is a C string for ever.
        let fd = unsafe { libc::memfd_create(c"nerite-lease".as_ptr(), flags | more) };
        if fd >= 0 {
            // SAFETY: memfd_create has just returned this descriptor, so it is open and nobody else owns it.
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
    fn huge_pages_are_for_sizes_that_fill_them() {
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
