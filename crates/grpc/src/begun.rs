//! What is known of a call before its first message?

use nerite_budget::Charge;

use crate::compress::Compression;
use crate::deadline::Deadline;
use crate::frame::Messages;
use crate::infer_request::Forwarded;

/// A call that was begun.
pub(crate) struct Begun {
    pub(crate) messages: Messages,
    pub(crate) deadline: Deadline,
    pub(crate) compression: Option<Compression>,
    pub(crate) forwarded: Forwarded,
    /// Whether the first failed response of a stream ends it with its own status.
    pub(crate) is_strict: bool,
    /// What the client is charged for the call itself.
    pub(crate) charge: Charge,
}
