//! How much work may compressed messages cause?

/// Every message may inflate to this size, even if it is tiny, unless the operator's limit is lower.
pub const INFLATED_FLOOR_BYTES: u64 = 16 << 20;
/// A message that inflates to more than [`INFLATED_FLOOR_BYTES`] may become at most this many times larger. The format allows 1,032 times.
pub const INFLATED_RATIO_MAX: u64 = 200;

/// The most bytes that one step reads. A step takes a few milliseconds.
pub const STEP_BYTES_IN: usize = 128 << 10;
/// The most bytes that one step writes.
pub const STEP_BYTES_OUT: usize = 1 << 20;

/// A message up to this compressed size is inflated on the front thread at first.
pub const INLINE_INFLATE_BYTES_IN: usize = 8 << 10;
/// The most bytes that it may inflate to there. The rest is inflated on a worker thread.
pub const INLINE_INFLATE_BYTES_OUT: usize = 64 << 10;
/// A message up to this size is compressed on the front thread.
pub const INLINE_COMPRESS_BYTES: usize = 16 << 10;

/// The most concurrent steps on a small machine.
pub const STEPS_AT_ONCE_MIN: usize = 2;
/// The most concurrent steps on a large machine.
pub const STEPS_AT_ONCE_MAX: usize = 16;

const _: () = assert!(INLINE_INFLATE_BYTES_IN <= STEP_BYTES_IN && INLINE_INFLATE_BYTES_OUT <= STEP_BYTES_OUT);
const _: () = assert!(INLINE_COMPRESS_BYTES <= STEP_BYTES_IN);
const _: () = assert!(INLINE_INFLATE_BYTES_IN as u64 * INFLATED_RATIO_MAX <= INFLATED_FLOOR_BYTES);
const _: () = assert!(STEPS_AT_ONCE_MIN <= STEPS_AT_ONCE_MAX);
