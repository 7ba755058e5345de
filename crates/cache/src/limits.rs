//! How large may things of the response cache become?

/// Responses that are kept, however small they are. Growing the table of so many takes some milliseconds, during which others wait.
pub const ENTRIES_MAX: usize = 1 << 18;
/// Responses that are given up for one new response. Others wait meanwhile.
pub const EVICTED_MAX: usize = 1024;
/// More bytes than this are freed on a thread of their own: the system takes 30 ms and more for 256 MiB.
pub const FREED_HERE_BYTES_MAX: u64 = 8 << 20;
/// What is counted for a response beside its tensors: its key in two tables, and its own fields.
pub const RESPONSE_BYTES: u64 = 256;
/// What is counted for an output beside its bytes: its name, its shape, and the block that holds the bytes.
pub const OUTPUT_BYTES: u64 = 192;
/// Bytes of shared memory that are copied before they are hashed.
pub const CHUNK_BYTES: usize = 64 << 10;
