//! How much may a connection make us do?

/// Non-empty chunks a chunked body may have, as in Triton.
pub const CHUNKS_MAX: usize = 65536;
/// Pieces of at least this size are not counted as chunks: one large chunk arrives in many pieces, and what the limit is
/// there to stop is the cost of many tiny ones.
pub const CHUNK_COUNTED_BYTES_MAX: usize = 512;
/// The largest body of an inference, as in Triton, which reads the length into 32 bits.
pub const INFER_BODY_BYTES_MAX: u64 = i32::MAX as u64;
/// The largest body of a load request: it carries whole model files in base64.
pub const LOAD_BODY_BYTES_MAX: u64 = 4 << 30;
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
/// JSON texts larger than this are read outside the threads that serve connections.
pub const INLINE_WORK_BYTES_MAX: usize = 1 << 20;

const _: () = assert!(FIRST_BLOCK_BYTES_MIN <= FIRST_BLOCK_BYTES_MAX);
const _: () = assert!(FIRST_BLOCK_BYTES_MAX as u64 <= INFER_BODY_BYTES_MAX);
const _: () = assert!(TAIL_ALIGN.is_power_of_two());
