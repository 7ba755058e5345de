//! How large is a page of memory?
//!
//! Linux for aarch64 may have pages of 4, 16 or 64 KiB, and one program runs on all three. That for x86-64 has pages of 4 KiB.

/// The smallest page. Every mapping is aligned to it.
pub(crate) const PAGE_BYTES_MIN: usize = 4 << 10;

/// The largest page. A part of a mapping whose offset is a multiple of it can be unmapped.
pub(crate) const PAGE_BYTES_MAX: usize = if cfg!(target_arch = "x86_64") { PAGE_BYTES_MIN } else { 64 << 10 };
