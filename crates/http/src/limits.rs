//! How much may a connection make us do?

use std::time::Duration;

pub use nerite_request::limits::INLINE_WORK_BYTES_MAX;

/// Non-empty chunks a chunked body may have, as in Triton.
pub const CHUNKS_MAX: usize = 65536;
/// Pieces of at least this size are not counted as chunks: one large chunk arrives in many pieces, and what the limit is
/// there to stop is the cost of many tiny ones.
pub const CHUNK_COUNTED_BYTES_MAX: usize = 512;
/// The largest body of an inference, as in Triton, which reads the length into 32 bits.
pub const INFER_BODY_BYTES_MAX: u64 = i32::MAX as u64;
/// A load's body of more bytes than this goes to disk.
pub const SPOOL_BYTES_MIN: usize = 4 << 20;
/// Bytes of such a body that are written to disk at once.
pub const SPOOL_STEP_BYTES: usize = 1 << 20;
/// The first block for a body is not larger, whatever length the client declares; it grows when the bytes really come, which
/// copies nothing: its pages move.
pub const FIRST_BLOCK_BYTES_MAX: usize = 2 << 20;
/// The first block for a body of unknown length.
pub const FIRST_BLOCK_BYTES_MIN: usize = 64 << 10;
/// Where the binary part of a body begins in its block: as aligned as any runtime asks for.
pub const TAIL_ALIGN: usize = 64;
/// A binary part smaller than this stays where the socket left it: copying it later, if at all, costs less than a block.
pub const TAIL_KEPT_BYTES_MAX: usize = 4 << 10;
/// A body that a call has no use for is read all the same up to this size. Left unread it would cost the client its connection.
pub const UNUSED_BODY_BYTES_MAX: u64 = 64 << 10;
/// A request's header list of no more fields than this becomes the answer's, so that none is allocated.
pub const KEPT_HEADERS_MAX: usize = 32;
/// Bytes that are copied in the time in which one byte becomes text.
pub const COPIED_BYTES: usize = 16;
/// The largest body of a call that is neither an inference nor a load: settings, registrations, the index. It is read on the thread
/// that serves the connection.
pub const CONTROL_BODY_BYTES_MAX: u64 = INLINE_WORK_BYTES_MAX as u64;

/// Smaller bodies and answers are part of what a connection is charged for itself: it has one of each at a time.
pub const CHARGED_BYTES_MIN: usize = 16 << 10;
/// Bytes of a configuration, as a message, that is written on the thread that serves the connection. Its JSON is longer.
pub const INLINE_CONFIG_BYTES_MAX: usize = INLINE_WORK_BYTES_MAX / 4;
/// Bytes of the sentence in an error. It may quote names of a client, which may be longer; what a Python model raises is shorter.
pub const ERROR_BYTES_MAX: usize = INLINE_WORK_BYTES_MAX;
/// A connection that is ended, because of what it held and no longer holds, has so long to tell its client why.
pub const LEAVE_MAX: Duration = Duration::from_secs(5);
/// So much of that is for reading what the client still sends, so that it gets to read the answer.
pub const DISCARD_MAX: Duration = Duration::from_secs(1);

const _: () = assert!(FIRST_BLOCK_BYTES_MIN <= FIRST_BLOCK_BYTES_MAX);
const _: () = assert!(FIRST_BLOCK_BYTES_MAX as u64 <= INFER_BODY_BYTES_MAX);
const _: () = assert!(TAIL_ALIGN.is_power_of_two());
