//! How much may one session ask at a time?

use std::time::Duration;

pub use nerite_api::{LEASES_PER_SESSION_MAX, SESSIONS_MAX};
pub use nerite_wire::proto::session::{DESCRIPTORS_MAX, PACKET_BYTES_MAX};

/// Default of `--sessions-per-user-max`: sessions that one user may have open, unless it is the server's own. So no other user can take
/// all places alone.
pub const SESSIONS_PER_USER_MAX: usize = 64;

/// Places beside those, for an operator who comes when all are taken. Such a session says in Hello that it is the operator's,
/// and makes the operator's calls and no others.
pub const OPERATOR_SESSIONS_MAX: usize = 4;

/// Inferences of one session that may be in flight; the next is refused.
pub const INFERENCES_MAX: usize = 256;

/// Bytes of answers that wait because the client does not read them; past that the session ends.
pub const QUEUED_BYTES_MAX: usize = 16 << 20;

/// What an inference in flight is charged beside its packet: its request, its place in the model's queue and its answer's parameters.
pub const INFERENCE_BYTES: usize = 8 << 10;

/// Inferences that one session may have prepared.
pub const PREPARED_MAX: usize = 256;

/// Prepared inferences that one packet may ask for.
pub const PREPARED_CALLS_MAX: usize = 32;

/// What a prepared inference is charged beside its packet.
pub const PREPARED_BYTES: usize = 8 << 10;

/// After so much time the calls of one packet let others have their turn.
pub(crate) const CALLS_TURN: Duration = Duration::from_millis(1);

/// What an answer that waits is charged beside its bytes.
pub const QUEUED_PACKET_BYTES: usize = 256;

/// Answers that wait.
pub const QUEUED_PACKETS_MAX: usize = 4096;

/// Descriptors that wait in answers. The process has few, and a session that does not read must not take them from others.
pub const QUEUED_DESCRIPTORS_MAX: usize = 128;

/// Default of `--session-hello-timeout`. A connection that has not said Hello by then is closed: it takes one of [`SESSIONS_MAX`] places.
pub const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// The longest time for one that has one of the operator's places, of which there are few.
pub const RESERVE_HELLO_WITHIN: Duration = Duration::from_secs(1);

/// While the server stops, so long a client may take to read its last answers.
pub const STOPPING_READ_WITHIN: Duration = Duration::from_secs(1);

/// How often a session that stops looks whether they were read.
pub(crate) const STOPPING_LOOK_PAUSE: Duration = Duration::from_millis(5);

/// Headers a client may bring.
pub const HEADERS_MAX: usize = 64;

/// Characters of what a client calls itself that are kept.
pub(crate) const CLIENT_CHARS_MAX: usize = 64;

/// Bytes from which on a list goes on in another packet.
pub(crate) const PAGE_BYTES: usize = PACKET_BYTES_MAX / 2;

/// Regions looked at at a time for a list.
pub(crate) const PAGE_REGIONS: usize = 64;

/// Packets up to this size are copied out of the session's receive buffer; a larger one takes the buffer along, so that its
/// tensors are not copied.
pub(crate) const COPIED_BYTES_MAX: usize = 4096;

/// A session with more bytes than this is taken down away from the threads that serve.
pub(crate) const QUICK_CLOSE_BYTES_MAX: u64 = 16 << 20;

/// Connections that wait to be accepted.
pub(crate) const BACKLOG: i32 = 128;

/// A session socket that could not be made is tried again after this time, and sooner if something happened there. Where the
/// system has no inotify left, the socket's file is looked at as often.
pub(crate) const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Between two tries there is always this much time: whoever owns the place may change it without end.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_secs(1);

const _: () = assert!(DESCRIPTORS_MAX <= QUEUED_DESCRIPTORS_MAX, "one answer must be able to wait");
const _: () = assert!(PACKET_BYTES_MAX < QUEUED_BYTES_MAX);
const _: () = assert!(PREPARED_CALLS_MAX <= INFERENCES_MAX && PREPARED_CALLS_MAX <= DESCRIPTORS_MAX);
const _: () =
    assert!(SESSIONS_PER_USER_MAX * 2 <= SESSIONS_MAX && RESERVE_HELLO_WITHIN.as_millis() <= HELLO_WITHIN.as_millis());
const _: () = assert!(LEASES_PER_SESSION_MAX * 64 < PACKET_BYTES_MAX, "the leases of a session fit in one answer");
const _: () = assert!(PAGE_BYTES + (16 << 10) < PACKET_BYTES_MAX, "the last region of a page, and its name again");
const _: () = assert!((SESSIONS_MAX + OPERATOR_SESSIONS_MAX) * (4 * CLIENT_CHARS_MAX + 128) < PACKET_BYTES_MAX);
