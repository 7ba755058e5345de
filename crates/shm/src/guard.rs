//! How is a region's mapping watched?

use std::io;

pub(crate) use nerite_guard::Watch;

/// Watches `len` bytes, whole pages, from `start` on.
///
/// # Safety
/// As for [`nerite_guard::watch`].
pub(crate) unsafe fn watch(start: usize, len: usize) -> io::Result<Watch> {
    // SAFETY: the caller has promised what `nerite_guard::watch` requires.
    unsafe { nerite_guard::watch(start, len) }.map_err(|error| io::Error::from_raw_os_error(error.0))
}
