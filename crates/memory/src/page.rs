//! How large is a page of memory?
//!
//! On aarch64, Linux may have pages of 4, 16 or 64 KiB, and one program must run with all three sizes. On x86-64 a page has 4 KiB.

/// The smallest page. Every mapping is aligned to it.
pub(crate) const PAGE_BYTES_MIN: usize = 4 << 10;

/// The largest page. A part of a mapping whose offset is a multiple of it can be unmapped.
pub(crate) const PAGE_BYTES_MAX: usize = if cfg!(target_arch = "x86_64") { PAGE_BYTES_MIN } else { 64 << 10 };
