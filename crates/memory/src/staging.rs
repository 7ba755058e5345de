//! Through which memory of the host do bytes from and for a device pass?

use crate::{NoMemory, Slot};

/// Memory of this host that bytes from and for a device pass through, for runtimes that compute on the host.
pub trait Staging: Send + Sync {
    /// `len` bytes of this process alone; page-locked if that can be had. Refused where requests hold too much already: the
    /// size is a client's word, and devices may have more memory than the host.
    fn slot(&self, len: usize) -> Result<Slot, StagingFull>;

    /// How much page-locked memory there is for this, in use and in all.
    fn pinned(&self) -> PinnedBytes {
        PinnedBytes::default()
    }
}

/// No more memory for staging now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingFull {
    /// Bytes asked for.
    pub asked: usize,
    /// Bytes that requests hold.
    pub used: u64,
    /// Bytes they may hold.
    pub max: u64,
}

impl StagingFull {
    /// There is no memory on the host, where requests hold `used` bytes: more there will not be.
    pub fn of(refused: NoMemory, used: u64) -> StagingFull {
        StagingFull { asked: refused.asked, used, max: used }
    }
}

impl std::fmt::Display for StagingFull {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let StagingFull { asked, used, max } = self;
        write!(
            f,
            "no memory to carry {asked} bytes between host and device: requests hold {used} of {max} bytes for that"
        )
    }
}

impl std::error::Error for StagingFull {}

/// Page-locked memory for staging.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinnedBytes {
    /// At most so many bytes are locked.
    pub total: u64,
    /// Bytes that requests hold now.
    pub used: u64,
}

/// Staging through the heap: for hosts without a device, and for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeapStaging;

impl Staging for HeapStaging {
    fn slot(&self, len: usize) -> Result<Slot, StagingFull> {
        Slot::try_heap(len).map_err(|refused| StagingFull::of(refused, 0))
    }
}
