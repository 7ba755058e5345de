//! How large is a page of memory?

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
