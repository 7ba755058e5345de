//! How much of a GPU host's memory may be locked, and what is kept for later?

/// Default of `--pinned-memory-pool-byte-size`, which is Triton's.
pub const PINNED_POOL_BYTES: u64 = 256 << 20;

/// Smallest block of the pinned pool: the system locks whole pages.
pub const PINNED_BLOCK_BYTES_MIN: usize = 4096;

/// The most idle streams of a device that are kept. This many threads can copy at once without making new streams.
pub const STREAMS_IDLE_MAX: usize = 16;

/// At most one part in this many of the host's memory is page-locked memory of clients. Locking allocates all pages of a sparse object, so without a
/// bound one registration could take all memory.
pub const LOCKED_SHARE: u64 = 4;

/// At most one part in this many of the host's memory is heap memory for transfers that do not fit into the pinned pool. A client chooses the size,
/// and a device may have more memory than the host.
pub const HEAP_SHARE: u64 = 4;

const _: () = assert!(PINNED_BLOCK_BYTES_MIN.is_power_of_two());
