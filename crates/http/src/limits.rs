//! Which limits are there on requests over HTTP?

use std::time::Duration;

pub use nerite_request::limits::{COPIED_BYTES, INLINE_WORK_BYTES_MAX};

/// The most non-empty chunks of a chunked body, as in Triton.
pub const CHUNKS_MAX: usize = 65536;
/// Pieces of at least this size are not counted as chunks, because one large chunk arrives in many pieces. The limit is only meant to stop many tiny chunks.
pub const CHUNK_COUNTED_BYTES_MAX: usize = 512;
/// The largest body of an inference, as in Triton, which stores the length in 32 bits.
pub const INFER_BODY_BYTES_MAX: u64 = i32::MAX as u64;
/// A larger body of a load request is written to disk.
pub const SPOOL_BYTES_MIN: usize = 4 << 20;
/// After that, the rest of such a body is written to disk in steps of about this size.
pub const SPOOL_STEP_BYTES: usize = 1 << 20;
/// The largest first block for a body, whatever length the client declares. The block grows as the bytes arrive, without a copy: its pages are
/// moved.
pub const FIRST_BLOCK_BYTES_MAX: usize = 2 << 20;
/// The first block for a body of unknown length.
pub const FIRST_BLOCK_BYTES_MIN: usize = 64 << 10;
/// Alignment of a body's binary part in its block. No runtime needs more.
pub const TAIL_ALIGN: usize = 64;
/// If a body arrives in one piece, a smaller binary part is not copied into an aligned block. A later copy, if one is needed, costs less.
pub const TAIL_KEPT_BYTES_MAX: usize = 4 << 10;
/// A body that a call does not use is read up to this size. An unread body would make the server close the connection.
pub const UNUSED_BODY_BYTES_MAX: u64 = 64 << 10;
/// The most bytes that are read and dropped of the body of a request that is refused. Beyond them the connection is cut, so the client may lose the answer.
pub const UNREAD_BODY_BYTES_MAX: u64 = 256 << 20;
/// The answer reuses the memory of the request's headers if they have at most this many fields.
pub const KEPT_HEADERS_MAX: usize = 32;
/// The largest body of a call that is neither an inference nor a load.
pub const CONTROL_BODY_BYTES_MAX: u64 = nerite_request::limits::CONTROL_BYTES_MAX as u64;

/// Smaller bodies and answers are not charged: the fixed charge of a connection covers one of each.
pub const CHARGED_BYTES_MIN: usize = 16 << 10;
/// The largest configuration, as a protobuf message, that is written on the front thread. Its JSON is longer.
pub const INLINE_CONFIG_BYTES_MAX: usize = INLINE_WORK_BYTES_MAX / 4;
/// The most bytes of an error's text. Without a limit, an error could quote a long name that a client chose. Errors of Python models are shorter.
pub const ERROR_BYTES_MAX: usize = INLINE_WORK_BYTES_MAX;
/// How long a connection that was shed, and has released its memory, may take to send its client the reason. A refused request's body is read for as long
/// after the answer.
pub const LEAVE_MAX: Duration = Duration::from_secs(5);
/// How long the rest of a refused body is read and dropped before the answer. Many clients read the answer only after they have sent the body.
pub const DISCARD_MAX: Duration = Duration::from_secs(1);

const _: () = assert!(FIRST_BLOCK_BYTES_MIN <= FIRST_BLOCK_BYTES_MAX);
const _: () = assert!(FIRST_BLOCK_BYTES_MAX as u64 <= INFER_BODY_BYTES_MAX);
const _: () = assert!(TAIL_ALIGN.is_power_of_two());
