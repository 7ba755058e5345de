//! Which limits apply to the memory that clients make the server hold?

/// The share of the server's memory that all clients together may use.
pub const ALL_SHARE: (u64, u64) = (1, 2);
/// One part in this many of it is reserved for other peers. One peer may use the rest.
pub const OTHERS_PART: u64 = 8;
/// The low mark, as a share of the high mark.
pub const LOW_SHARE: (u64, u64) = (3, 4);
/// The share of a budget that may be retained beyond connections: a peer always has the other part of its budget for its requests. It is less than the
/// low mark, so what is retained stops no reading by itself.
pub const RETAINED_SHARE: (u64, u64) = (1, 2);
/// The same for peers that keep at most [`LIGHT_BYTES_MAX`]. The difference to [`RETAINED_SHARE`] is reserved for them. It is less than the low mark as
/// well.
pub const LIGHT_RETAINED_SHARE: (u64, u64) = (5, 8);
/// A connection's bytes are counted in the budgets in steps of this size, so that small requests touch only its own counter.
pub const STEP_BYTES: u64 = 64 << 10;
/// A connection or peer that holds more is heavy: heavy holders share a budget in equal parts. With less it may always read.
pub const LIGHT_BYTES_MAX: u64 = 4 * STEP_BYTES;
/// Charged for an open connection itself: its task, the state of its socket and its first buffers.
pub const CONNECTION_BYTES: u64 = 32 << 10;
/// Charged for an open HTTP/2 stream itself: its entry in the library's tables, its task and the state of its call.
pub const STREAM_BYTES: u64 = 10 << 10;
/// A body that waited this long checks for a stall.
pub const STALL_MS: u64 = 2000;
/// A budget that changed by less in that time counts as stalled.
pub const MOVED_BYTES_MIN: u64 = 1 << 20;
/// Pause after which a waiting body checks again.
pub const RETRY_MS: u64 = 100;
/// Waiting bodies that are woken at once, so that the cost of each change of a budget is bounded.
pub const WOKEN_AT_ONCE_MAX: usize = 64;
/// The least time between two connections that are ended because of a stall. The memory of one may be enough for the others.
pub const STALL_SHED_APART_MS: u64 = 200;
/// How long a connection that is ended may take to tell its client why.
pub const LEAVE_MS_MAX: u64 = 250;
/// A connection that holds no more than this by then may take longer, because it has released its memory.
pub const LEAVING_BYTES_MAX: u64 = 1 << 20;
/// The least time between two log lines about ended connections.
pub const LOG_APART_MS: u64 = 1000;

const _: () = assert!(LIGHT_BYTES_MAX > CONNECTION_BYTES + STEP_BYTES);
const _: () = assert!(RETAINED_SHARE.0 * LIGHT_RETAINED_SHARE.1 < LIGHT_RETAINED_SHARE.0 * RETAINED_SHARE.1);
const _: () = assert!(LIGHT_RETAINED_SHARE.0 * LOW_SHARE.1 < LOW_SHARE.0 * LIGHT_RETAINED_SHARE.1);
const _: () = assert!(RETRY_MS < STALL_MS && STALL_SHED_APART_MS < STALL_MS);
