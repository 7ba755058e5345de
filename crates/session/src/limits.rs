//! Which limits does a session have?

use std::time::Duration;

pub use nerite_api::{LEASES_PER_SESSION_MAX, SESSIONS_MAX};
pub use nerite_wire::proto::session::{DESCRIPTORS_MAX, PACKET_BYTES_MAX};

/// Default of `--sessions-per-user-max`: the most open sessions of one user, so that no user can take all places alone. The server's own user has no such
/// limit.
pub const SESSIONS_PER_USER_MAX: usize = 64;

/// Places reserved for an operator who connects when all others are taken. Such a session says in Hello that it is the operator's, and may make only
/// the operator's calls.
pub const OPERATOR_SESSIONS_MAX: usize = 4;

/// The most inferences of one session in flight. The next one is refused.
pub const INFERENCES_MAX: usize = 256;

/// The most calls of one session that wait for models to be loaded. The next one is refused.
pub const WAITING_CALLS_MAX: usize = 64;

/// The most bytes of answers that the client has not read. Beyond this the session ends.
pub const QUEUED_BYTES_MAX: usize = 16 << 20;

/// Charge for an inference in flight, without its packet: its request, its entry in the model's queue, and its answer's parameters.
pub const INFERENCE_BYTES: usize = 8 << 10;

/// The most prepared inferences of one session.
pub const PREPARED_MAX: usize = 256;

/// The most prepared inferences that one packet may call.
pub const PREPARED_CALLS_MAX: usize = 32;

/// Charge for a prepared inference, without its packet.
pub const PREPARED_BYTES: usize = 8 << 10;

/// After this time the calls of one packet yield to other tasks.
pub(crate) const CALLS_SLICE: Duration = Duration::from_millis(1);

/// Calls of one packet between two reads of the clock.
pub(crate) const CALLS_BETWEEN_CLOCKS: usize = 8;

/// Charge for a waiting answer, without its bytes.
pub const QUEUED_PACKET_BYTES: usize = 256;

/// The most waiting answers.
pub const QUEUED_PACKETS_MAX: usize = 4096;

/// The most descriptors in waiting answers. The process has few, and a session that does not read its answers must not take them from others.
pub const QUEUED_DESCRIPTORS_MAX: usize = 128;

/// Default of `--session-hello-timeout`. A connection that has not sent Hello by then is closed, because it takes one of [`SESSIONS_MAX`] places.
pub const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// The limit for a connection that has one of the operator's few places.
pub const RESERVE_HELLO_WITHIN: Duration = Duration::from_secs(1);

/// How long a client may take to read its last answers when the server stops.
pub const STOPPING_READ_WITHIN: Duration = Duration::from_secs(1);

/// How often a stopping session checks whether its last answers were read.
pub(crate) const STOPPING_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The most headers of a client.
pub const HEADERS_MAX: usize = 64;

/// The most characters of a client's name that are kept.
pub(crate) const CLIENT_CHARS_MAX: usize = 64;

/// A list that reaches this many bytes continues in another packet.
pub(crate) const PAGE_BYTES: usize = PACKET_BYTES_MAX / 2;

/// Regions that are inspected at one time for a list.
pub(crate) const PAGE_REGIONS: usize = 64;

/// Packets up to this size are decoded in the session's receive buffer, and what is kept of them is copied. A larger packet keeps the buffer, so that
/// its tensors are not copied.
pub(crate) const SHORT_BYTES_MAX: usize = 4096;

/// How often a session checks whether its client is gone while it may not read because the memory budgets are used up.
pub(crate) const HANG_UP_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How long to wait for a change before the session socket is created again. If no inotify instance is left, the socket's file is checked at this interval.
pub(crate) const RECHECK_AFTER: Duration = Duration::from_secs(10);

/// The least time between two attempts. The owner of the directory may change it again and again.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_secs(1);

const _: () = assert!(DESCRIPTORS_MAX <= QUEUED_DESCRIPTORS_MAX, "one answer must be able to wait");
const _: () = assert!(PACKET_BYTES_MAX < QUEUED_BYTES_MAX);
const _: () = assert!(WAITING_CALLS_MAX < INFERENCES_MAX, "inferences of loaded models go on");
const _: () = assert!(PREPARED_CALLS_MAX <= INFERENCES_MAX && PREPARED_CALLS_MAX <= DESCRIPTORS_MAX);
const _: () =
    assert!(SESSIONS_PER_USER_MAX * 2 <= SESSIONS_MAX && RESERVE_HELLO_WITHIN.as_millis() <= HELLO_WITHIN.as_millis());
const _: () = assert!(LEASES_PER_SESSION_MAX * 64 < PACKET_BYTES_MAX, "the leases of a session fit in one answer");
const _: () = assert!(PAGE_BYTES + (16 << 10) < PACKET_BYTES_MAX, "the last region of a page, and its name again");
const _: () = assert!((SESSIONS_MAX + OPERATOR_SESSIONS_MAX) * (4 * CLIENT_CHARS_MAX + 128) < PACKET_BYTES_MAX);
