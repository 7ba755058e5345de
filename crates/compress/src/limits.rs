//! How much work may compression cause?

/// Whatever its compressed size, a message may inflate to this size, if the operator's limit allows it.
pub const INFLATED_FLOOR_BYTES: u64 = 16 << 20;
/// A message that inflates to more than the floor may become this many times as large as it was. Deflate itself ends at 1,032.
pub const INFLATED_RATIO_MAX: u64 = 200;

/// What one step reads and writes at most. A step takes a few milliseconds.
pub const STEP_BYTES_IN: usize = 128 << 10;
/// See [`STEP_BYTES_IN`].
pub const STEP_BYTES_OUT: usize = 1 << 20;

/// A compressed message of this size is begun on the thread that serves its connection.
pub const INLINE_INFLATE_BYTES_IN: usize = 8 << 10;
/// What such a message may become there. If it becomes more, it goes on elsewhere.
pub const INLINE_INFLATE_BYTES_OUT: usize = 64 << 10;
/// A message of this size is compressed on the thread that serves its connection.
pub const INLINE_COMPRESS_BYTES: usize = 16 << 10;

/// Steps that run at the same time, on a small machine and on a large one.
pub const PLACES_MIN: usize = 2;
/// See [`PLACES_MIN`].
pub const PLACES_MAX: usize = 16;

const _: () = assert!(INLINE_INFLATE_BYTES_IN <= STEP_BYTES_IN && INLINE_INFLATE_BYTES_OUT <= STEP_BYTES_OUT);
const _: () = assert!(INLINE_COMPRESS_BYTES <= STEP_BYTES_IN);
const _: () = assert!(INLINE_INFLATE_BYTES_IN as u64 * INFLATED_RATIO_MAX <= INFLATED_FLOOR_BYTES);
const _: () = assert!(PLACES_MIN <= PLACES_MAX);
