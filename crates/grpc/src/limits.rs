//! How much may a gRPC client ask for?

/// What a client may send on one stream before we read it, in bytes. Read at once, so it bounds a burst, not a message.
pub const STREAM_WINDOW_BYTES: u32 = 16 << 20;
/// The same for all streams of a connection together.
pub const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
/// The largest HTTP/2 frame. Each frame is read into one block of its own, so this much is touched anew per frame.
pub const FRAME_BYTES_MAX: u32 = 4 << 20;
/// Calls in progress on one connection; clients keep more to themselves until one has ended.
pub const CALLS_PER_CONNECTION_MAX: u32 = 1024;
/// Calls that a client opened and cancelled before we looked at them.
pub const CANCELLED_UNSEEN_MAX: usize = 4096;
/// Metadata of one call, in bytes as HTTP/2 counts them; as in gRPC's own library.
pub const METADATA_BYTES_MAX: u32 = 16 << 10;
/// Bytes of header blocks that are read each time a connection is polled.
pub const HEADER_BYTES_AT_ONCE: usize = 8 << 10;
/// What a DATA frame is charged beside its bytes, as long as it is unread: its entry in the library's queue.
pub const FRAME_COST_BYTES: usize = 256;
/// Unread bytes of a connection are counted up to this, which is twice its window.
pub const UNREAD_BYTES_MAX: usize = 2 * CONNECTION_WINDOW_BYTES as usize;
/// Smaller answers are part of what their stream is charged for itself.
pub const CHARGED_ANSWER_BYTES_MIN: usize = 1 << 10;
/// A connection that is ended, because of what it held and no longer holds, has so long to tell its client why.
pub const SHED_LEAVE_MS_MAX: u64 = 1000;
/// Requests of one ModelStreamInfer that wait for their answers; beyond that the stream is not read on.
pub const REQUESTS_PER_STREAM_MAX: usize = 1024;
/// Bytes that wait to go out together; larger writes go by themselves.
pub const HELD_BYTES_MAX: usize = 16 << 10;
/// Smaller messages do not get smaller by compressing.
pub const COMPRESS_BYTES_MIN: usize = 64;
/// An inflated message comes in pieces: the first are small and grow, because most messages are small.
pub const INFLATED_SMALL_BYTES_MIN: usize = 4 << 10;
/// The last of the small pieces.
pub const INFLATED_SMALL_BYTES_MAX: usize = 32 << 10;
/// All further pieces.
pub const INFLATED_PIECE_BYTES: usize = nerite_memory::POOLED_BYTES_MIN;
/// Pieces of one write.
pub const SLICES_MAX: usize = 64;
/// How long a client without a whole request may take to leave when the server stops, or when its place is needed.
pub const LEAVE_MS_MAX: u64 = 200;
/// Longest text of a failure, as it stands in the header. Clients take 8 KiB of metadata by default, and lose the whole status
/// if there is more.
pub const MESSAGE_BYTES_MAX: usize = 4096;

/// Bytes of one call that are taken before others of the same thread have their turn.
pub const BYTES_PER_TURN: usize = 2 << 20;
/// A response of which more bytes are copied is written outside the threads that serve connections.
pub const COPIED_INLINE_BYTES_MAX: usize = 4 << 20;
/// A load of more bytes than this goes to disk, in parts of about so many.
pub const LOAD_PART_BYTES: usize = 4 << 20;
/// The largest message of a call that is neither an inference nor a load. It is read on the thread that serves the connection.
pub const CONTROL_MESSAGE_BYTES_MAX: usize = nerite_request::limits::INLINE_WORK_BYTES_MAX;

const _: () = assert!(INFLATED_SMALL_BYTES_MIN <= INFLATED_SMALL_BYTES_MAX);
const _: () = assert!(INFLATED_SMALL_BYTES_MAX < INFLATED_PIECE_BYTES);
const _: () = assert!(STREAM_WINDOW_BYTES <= CONNECTION_WINDOW_BYTES);
const _: () =
    assert!(FRAME_BYTES_MAX <= STREAM_WINDOW_BYTES && FRAME_BYTES_MAX >= 1 << 14 && FRAME_BYTES_MAX < 1 << 24);
