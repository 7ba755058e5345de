//! How large may things between the server and a model's process become?

use std::time::Duration;

/// Bytes of one packet; a longer text travels as a memory file.
pub const PACKET_BYTES_MAX: usize = 65_536;
/// Descriptors that come with one packet.
pub const DESCRIPTORS_MAX: usize = 64;
/// Pieces of memory that one packet may introduce: the others lie where the server copies them, or are asked for later.
pub const MAPS_MAX: usize = DESCRIPTORS_MAX - 2;
/// Bytes of a text that a model's process sends as a memory file.
pub const LONG_BYTES_MAX: usize = 64 << 20;
/// Where tensors begin in memory that several share.
pub const TENSOR_ALIGN: usize = 64;
/// A process that could not be started anew is not tried again for so long.
pub const RESTART_PAUSE: Duration = Duration::from_secs(1);
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

/// How long a process that has closed its channel may take to end before it is killed.
pub const CLOSED_MAX: Duration = Duration::from_secs(1);

const _: () = assert!(DESCRIPTORS_MAX < 253, "Linux passes no more at once");
