//! How large may the response cache and its entries become?

/// The most responses that are kept, however small they are. Growing a table of this size takes some milliseconds, and other requests wait meanwhile.
pub const ENTRIES_MAX: usize = 1 << 18;
/// The most responses that are dropped for one new response. Other requests wait meanwhile.
pub const EVICTED_MAX: usize = 1024;
/// More bytes than this are freed on a thread of their own: the system takes 30 ms and more for 256 MiB.
pub const FREED_HERE_BYTES_MAX: u64 = 8 << 20;
/// Bytes that are counted for a response beside its tensors: its key in two tables, and its own fields.
pub const RESPONSE_BYTES: u64 = 256;
/// Bytes that are counted for an output beside its data: its name, its shape, and the block that holds the data.
pub const OUTPUT_BYTES: u64 = 192;
/// Bytes of shared memory that are copied before they are hashed.
pub const CHUNK_BYTES: usize = 64 << 10;
