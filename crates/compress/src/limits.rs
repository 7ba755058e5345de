//! How much work may compressed messages cause?

/// Every message may inflate to this size, however small it is compressed, if the operator's limit allows it.
pub const INFLATED_FLOOR_BYTES: u64 = 16 << 20;
/// A message that inflates to more than the floor may become at most this many times larger. The format allows 1,032 times.
pub const INFLATED_RATIO_MAX: u64 = 200;

/// Bytes that one step reads at most. A step takes a few milliseconds.
pub const STEP_BYTES_IN: usize = 128 << 10;
/// Bytes that one step writes at most.
pub const STEP_BYTES_OUT: usize = 1 << 20;

/// Inflating a message up to this compressed size begins on the thread that serves its connection.
pub const INLINE_INFLATE_BYTES_IN: usize = 8 << 10;
/// Bytes that it may inflate to there. The rest is done on a worker thread.
pub const INLINE_INFLATE_BYTES_OUT: usize = 64 << 10;
/// A message up to this size is compressed on the thread that serves its connection.
pub const INLINE_COMPRESS_BYTES: usize = 16 << 10;

/// Steps that run at the same time on a small machine.
pub const STEPS_AT_ONCE_MIN: usize = 2;
/// Steps that run at the same time on a large machine.
pub const STEPS_AT_ONCE_MAX: usize = 16;

const _: () = assert!(INLINE_INFLATE_BYTES_IN <= STEP_BYTES_IN && INLINE_INFLATE_BYTES_OUT <= STEP_BYTES_OUT);
const _: () = assert!(INLINE_COMPRESS_BYTES <= STEP_BYTES_IN);
const _: () = assert!(INLINE_INFLATE_BYTES_IN as u64 * INFLATED_RATIO_MAX <= INFLATED_FLOOR_BYTES);
const _: () = assert!(STEPS_AT_ONCE_MIN <= STEPS_AT_ONCE_MAX);
