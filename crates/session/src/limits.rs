//! How much may one session ask at a time?

use std::time::Duration;

pub use nerite_api::SESSIONS_MAX;
pub use nerite_wire::proto::session::{DESCRIPTORS_MAX, PACKET_BYTES_MAX};

/// Inferences of one session that may be in flight; the next is refused.
pub const INFERENCES_MAX: usize = 256;

/// Bytes of answers that wait because the client does not read them; past that the session ends.
pub const QUEUED_BYTES_MAX: usize = 16 << 20;

/// Answers that wait.
pub const QUEUED_PACKETS_MAX: usize = 4096;

/// Descriptors that wait in answers. The process has few, and a session that does not read must not take them from others.
pub const QUEUED_DESCRIPTORS_MAX: usize = 128;

/// A connection that has not said Hello by then is closed: it takes one of [`SESSIONS_MAX`] places.
pub const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// Headers a client may bring.
pub const HEADERS_MAX: usize = 64;

/// Packets up to this size are copied out of the session's receive buffer; a larger one takes the buffer along, so that its
/// tensors are not copied.
pub(crate) const COPIED_BYTES_MAX: usize = 4096;

/// A session with more bytes than this is taken down away from the threads that serve.
pub(crate) const QUICK_CLOSE_BYTES_MAX: u64 = 16 << 20;

/// Connections that wait to be accepted.
pub(crate) const BACKLOG: i32 = 128;

const _: () = assert!(DESCRIPTORS_MAX <= QUEUED_DESCRIPTORS_MAX, "one answer must be able to wait");
const _: () = assert!(PACKET_BYTES_MAX < QUEUED_BYTES_MAX);
