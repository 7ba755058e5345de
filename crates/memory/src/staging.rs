//! Which host memory is used to copy bytes from and to a device?

use crate::{NoMemory, Slot};

/// Provides host memory for copies of device tensors, for runtimes that compute on the host.
pub trait Staging: Send + Sync {
    /// `len` bytes of this process, page-locked if possible. Fails if requests hold too many bytes already, because a client chose the size, and a device may
    /// have more memory than the host.
    fn slot(&self, len: usize) -> Result<Slot, StagingFull>;

    /// How much page-locked memory is in use, and how much there may be.
    fn pinned(&self) -> PinnedBytes {
        PinnedBytes::default()
    }
}

/// There is no more memory for staging at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingFull {
    /// The requested bytes.
    pub requested: usize,
    /// Bytes that requests hold.
    pub used: u64,
    /// Bytes that requests may hold.
    pub max: u64,
}

impl StagingFull {
    /// The error if the host has no more memory. Requests hold `used` bytes, and that number is given as the limit too.
    pub fn of(refused: NoMemory, used: u64) -> StagingFull {
        StagingFull { requested: refused.requested, used, max: used }
    }
}

impl std::fmt::Display for StagingFull {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let StagingFull { requested, used, max } = self;
        write!(
            f,
            "no memory to carry {requested} bytes between host and device: requests hold {used} of {max} bytes for that"
        )
    }
}

impl std::error::Error for StagingFull {}

/// Page-locked memory for staging.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinnedBytes {
    /// The most bytes that may be locked.
    pub total: u64,
    /// Bytes that requests hold now.
    pub used: u64,
}

/// Staging in heap memory, for hosts without a device and for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeapStaging;

impl Staging for HeapStaging {
    fn slot(&self, len: usize) -> Result<Slot, StagingFull> {
        Slot::try_heap(len).map_err(|refused| StagingFull::of(refused, 0))
    }
}
