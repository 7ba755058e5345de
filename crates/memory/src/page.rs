//! What are mappings measured in?

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
