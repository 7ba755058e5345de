//! What is known about a call before its first message arrives?

use nerite_budget::Charge;

use crate::compress::Compression;
use crate::deadline::Deadline;
use crate::frame::Messages;
use crate::infer_request::Forwarded;

/// A call whose head was read.
pub(crate) struct Begun {
    pub(crate) messages: Messages,
    pub(crate) deadline: Deadline,
    pub(crate) compression: Option<Compression>,
    pub(crate) forwarded: Forwarded,
    /// Whether the first error of a stream ends it with that status.
    pub(crate) is_strict: bool,
    /// The charge for the call itself.
    pub(crate) charge: Charge,
}
