//! How is a region's mapping given to the guard?

use std::io;

pub(crate) use nerite_guard::Watch;

/// Watches `len` bytes, whole pages, from `start` on.
///
/// # Safety
/// Those of [`nerite_guard::watch`].
pub(crate) unsafe fn watch(start: usize, len: usize) -> io::Result<Watch> {
    // SAFETY: the caller's promise is the callee's condition.
    unsafe { nerite_guard::watch(start, len) }.map_err(|error| io::Error::from_raw_os_error(error.0))
}
