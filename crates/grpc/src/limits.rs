//! Which limits do gRPC clients have?

/// Bytes that a client may send on one stream before the server reads them. They are read at once, so this limits a burst, not a message.
pub const STREAM_WINDOW_BYTES: u32 = 16 << 20;
/// The same for all streams of a connection together.
pub const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
/// The largest HTTP/2 frame. Each frame is read into a block of its own, so this much new memory is touched for each frame.
pub const FRAME_BYTES_MAX: u32 = 4 << 20;
/// The most calls in progress on one connection. Clients delay further calls until one has ended.
pub const CALLS_PER_CONNECTION_MAX: u32 = 1024;
/// The most calls that a client has opened and cancelled before the server handled them.
pub const CANCELLED_UNSEEN_MAX: usize = 4096;
/// If a request's header list has space for at most this many fields, its memory is used for the answer's headers.
pub const KEPT_HEADERS_MAX: usize = 32;
/// The most bytes of a call's metadata, as HTTP/2 counts them. The same as in gRPC's own library.
pub const METADATA_BYTES_MAX: u32 = 16 << 10;
/// The most bytes of header blocks that are read in one poll of a connection.
pub const HEADER_BYTES_AT_ONCE: usize = 8 << 10;
/// Charge for an unread DATA frame, without its bytes: its entry in the library's queue.
pub const FRAME_COST_BYTES: usize = 256;
/// Unread bytes of a connection are counted up to this limit, twice the connection's window.
pub const UNREAD_BYTES_MAX: usize = 2 * CONNECTION_WINDOW_BYTES as usize;
/// Smaller answers are not charged.
pub const CHARGED_ANSWER_BYTES_MIN: usize = 1 << 10;
/// How long a connection that was shed, and has released its memory, may take to send its client the reason.
pub const SHED_LEAVE_MS_MAX: u64 = 1000;
/// The most requests of one ModelStreamInfer that wait for their answers. The stream is not read further then.
pub const REQUESTS_PER_STREAM_MAX: usize = 1024;
/// The most bytes that are collected to be sent together. Larger writes are sent separately.
pub const HELD_BYTES_MAX: usize = 16 << 10;
/// Smaller messages are not compressed, because that would not make them smaller.
pub const COMPRESS_BYTES_MIN: usize = 64;
/// Size of the first piece of an inflated message. It is small, because most messages are small. Each further piece has twice the size.
pub const INFLATED_SMALL_BYTES_MIN: usize = 4 << 10;
/// Size of the largest piece that is made that way.
pub const INFLATED_SMALL_BYTES_MAX: usize = 32 << 10;
/// Size of all further pieces.
pub const INFLATED_PIECE_BYTES: usize = nerite_memory::POOLED_BYTES_MIN;
/// The most pieces of one write.
pub const SLICES_MAX: usize = 64;
/// How long a client without a complete request may take to disconnect when the server stops, or when its connection is evicted.
pub const LEAVE_MS_MAX: u64 = 200;
/// The longest error text, in its encoded form in the header. Clients accept 8 KiB of metadata by default, and lose the whole status if there is more.
pub const MESSAGE_BYTES_MAX: usize = 4096;

/// Bytes of one call that are read before other tasks of the same thread run.
pub const BYTES_PER_POLL: usize = 2 << 20;
/// A response of which more bytes must be copied is encoded on another thread than a front thread.
pub const COPIED_INLINE_BYTES_MAX: usize = 4 << 20;
/// A load request with more bytes than this is written to disk, in parts of about this size.
pub const LOAD_PART_BYTES: usize = 4 << 20;
/// The largest message of a call that is neither an inference nor a load. It is decoded on a front thread.
pub const CONTROL_MESSAGE_BYTES_MAX: usize = nerite_request::limits::CONTROL_BYTES_MAX;

const _: () = assert!(INFLATED_SMALL_BYTES_MIN <= INFLATED_SMALL_BYTES_MAX);
const _: () = assert!(INFLATED_SMALL_BYTES_MAX < INFLATED_PIECE_BYTES);
const _: () = assert!(STREAM_WINDOW_BYTES <= CONNECTION_WINDOW_BYTES);
const _: () =
    assert!(FRAME_BYTES_MAX <= STREAM_WINDOW_BYTES && FRAME_BYTES_MAX >= 1 << 14 && FRAME_BYTES_MAX < 1 << 24);
