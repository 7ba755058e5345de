//! How large may what an interpreter says and an environment holds become?

/// Bytes that are kept of what an interpreter prints when it is asked what it is.
pub const SAID_BYTES_MAX: usize = 64 << 10;
/// Entries of a packed environment; the largest ones in use have a quarter of that.
pub const ARCHIVE_ENTRIES_MAX: u64 = 1 << 20;
/// Bytes of a packed environment when unpacked. A larger one is better installed than packed.
pub const ARCHIVE_BYTES_MAX: u64 = 64 << 30;
/// Bytes between two entries of a packed environment: its names, which are held in memory.
pub const ARCHIVE_NAMES_BYTES_MAX: u64 = 1 << 20;
/// Bytes of one name in a packed environment; Linux takes no longer path.
pub const ARCHIVE_NAME_BYTES_MAX: usize = 4096;
/// Directories above a file of a packed environment, and the file: removing them takes a descriptor each.
pub const ARCHIVE_DEPTH_MAX: usize = 128;
