//! How much of a GPU host's memory may be locked, and what is kept for later?

/// Default of `--pinned-memory-pool-byte-size`, which is Triton's.
pub const PINNED_POOL_BYTES: u64 = 256 << 20;

/// Smallest block of the pinned pool: the system locks whole pages.
pub const PINNED_BLOCK_BYTES_MIN: usize = 4096;

/// Streams that wait for the next copy, per device: as many as threads may copy at once without making new ones.
pub const STREAMS_IDLE_MAX: usize = 16;

/// Clients' memory that is page-locked is at most this share of the host's, one part in so many. Locking gives a sparse
/// object its pages: without a bound one registration could take all memory there is.
pub const LOCKED_SHARE: u64 = 4;

/// Heap memory for transfers that the pinned pool has no room for is at most this share of the host's, one part in so many.
/// A client names the size, and a device may have more memory than the host.
pub const HEAP_SHARE: u64 = 4;

const _: () = assert!(PINNED_BLOCK_BYTES_MIN.is_power_of_two());
