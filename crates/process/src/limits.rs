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
/// How long a process that has closed its channel may take to end before it is killed.
pub const CLOSED_MAX: Duration = Duration::from_secs(1);

const _: () = assert!(DESCRIPTORS_MAX < 253, "Linux passes no more at once");
