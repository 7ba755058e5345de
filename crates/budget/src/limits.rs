//! Which numbers bound what clients hold?

/// Of the memory that the server may have, all clients together get this share.
pub const ALL_SHARE: (u64, u64) = (1, 2);
/// One peer gets all of that but this part, which is kept for others.
pub const OTHERS_PART: u64 = 8;
/// The low mark is this share of the high one.
pub const LOW_SHARE: (u64, u64) = (3, 4);
/// A connection's bytes are booked with its peer and the server in steps of this, so that small requests touch neither.
pub const STEP_BYTES: u64 = 64 << 10;
/// A connection or peer with more than this counts as one that memory is shared among. With less it is always read on.
pub const LIGHT_BYTES_MAX: u64 = 4 * STEP_BYTES;
/// What an open connection is charged for itself: its task, its socket's state and the buffers it starts with.
pub const CONNECTION_BYTES: u64 = 32 << 10;
/// What an open HTTP/2 stream is charged for itself: its entry in the library's tables, its task and its call's state.
pub const STREAM_BYTES: u64 = 10 << 10;
/// Who was not read on for so long looks whether anything moved.
pub const STALL_MS: u64 = 2000;
/// A budget that changed by less in that time did not move.
pub const MOVED_BYTES_MIN: u64 = 1 << 20;
/// So often those who wait look again whether they may go on.
pub const LOOK_AGAIN_MS: u64 = 100;
/// Connections ended because nothing moved are ended one by one, so long apart: what one held may be enough for the others.
pub const STALL_SHED_APART_MS: u64 = 200;
/// A connection that is ended has so long to tell its client why.
pub const LEAVE_MS_MAX: u64 = 250;
/// One that holds no more than this by then has longer: it has let go of what it was ended for.
pub const LEAVING_BYTES_MAX: u64 = 1 << 20;
/// What was shed is logged so often at the most.
pub const LOG_APART_MS: u64 = 1000;

const _: () = assert!(LIGHT_BYTES_MAX > CONNECTION_BYTES + STEP_BYTES);
const _: () = assert!(LOOK_AGAIN_MS < STALL_MS && STALL_SHED_APART_MS < STALL_MS);
