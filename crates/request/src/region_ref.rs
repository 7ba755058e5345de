//! How do requests and responses name a part of a region?

use nerite_tensor::Name;

/// A window of a registered region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionRef {
    /// The region's registered name.
    pub name: Name,
    /// First byte, from the region's start.
    pub offset: u64,
    /// Bytes.
    pub byte_size: u64,
}
