//! With which error does a call end?

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue};
use nerite_api::{Status, codes};
use nerite_budget::{OverBudget, Shed};
use nerite_compress::InflateError;
use nerite_wire::proto::Malformed;

use crate::limits::MESSAGE_BYTES_MAX;

/// The name of the status field. A `HeaderName` that is made from a string copies it at each use.
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Why a call failed: a gRPC status other than OK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    code: u32,
    message: Cow<'static, str>,
}

/// Ends a shortened message.
const ELLIPSIS: &[u8] = b"...";

const CANCELLED: u32 = 1;
const DEADLINE_EXCEEDED: u32 = 4;
const RESOURCE_EXHAUSTED: u32 = 8;
const UNIMPLEMENTED: u32 = 12;
const INTERNAL: u32 = 13;
const UNAVAILABLE: u32 = 14;

impl Failure {
    /// A call that does not exist.
    pub(crate) const UNKNOWN_CALL: Failure = Failure { code: UNIMPLEMENTED, message: Cow::Borrowed("") };
    /// A call that arrived after the stop of the server began.
    pub(crate) const STOPPING: Failure = Failure {
        code: UNAVAILABLE,
        message: Cow::Borrowed("GRPC server is shutting down and has stopped accepting new requests."),
    };
    /// A call that exceeded the client's deadline.
    pub(crate) const DEADLINE: Failure =
        Failure { code: DEADLINE_EXCEEDED, message: Cow::Borrowed("Deadline Exceeded") };
    /// A call whose client closed it.
    pub(crate) const GONE: Failure = Failure { code: CANCELLED, message: Cow::Borrowed("the client closed the call") };

    /// A call whose message stopped arriving.
    pub(crate) const SLOW: Failure = Failure {
        code: DEADLINE_EXCEEDED,
        message: Cow::Borrowed(
            "the request's message stopped coming, or came too slowly; --body-progress-timeout says how slow it may be",
        ),
    };

    /// A call without its message.
    pub(crate) const NO_MESSAGE: Failure = Failure { code: INTERNAL, message: Cow::Borrowed("No payload") };

    /// A message that exceeds the limit.
    pub(crate) fn too_large(len: usize, max: usize) -> Failure {
        Failure::new(RESOURCE_EXHAUSTED, format!("SERVER: Received message larger than max ({len} vs. {max})"))
    }

    /// A compressed message that would inflate to more bytes than allowed. `bytes_max` is the limit for every message of its call. If that limit was
    /// exceeded, the text names no option, because none raises it.
    pub(crate) fn inflates_too_far(cause: &InflateError, bytes_max: usize) -> Failure {
        let text = match cause {
            InflateError::TooLarge { bytes_max: exceeded } if *exceeded == bytes_max as u64 => {
                format!(
                    "SERVER: Received message larger than max (more than {bytes_max} once inflated vs. {bytes_max})"
                )
            }
            cause => cause.to_string(),
        };
        Failure::new(RESOURCE_EXHAUSTED, text)
    }

    /// A message that cannot be decoded.
    pub(crate) fn unreadable(cause: impl std::fmt::Display) -> Failure {
        Failure::new(INTERNAL, format!("Unable to parse request: {cause}"))
    }

    /// The status code as a number.
    pub(crate) fn code(&self) -> u32 {
        self.code
    }

    /// Whether a message was missing, incomplete or could not be decoded. Other internal errors have the same code.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.code == INTERNAL
    }

    /// An encoding that is not supported.
    pub(crate) fn unknown_encoding(name: &str) -> Failure {
        Failure::new(UNIMPLEMENTED, format!("Compression algorithm '{name}' is not supported"))
    }

    /// A message that exceeds the whole memory budget.
    pub(crate) fn over_budget(over: OverBudget) -> Failure {
        Failure::new(RESOURCE_EXHAUSTED, over.to_string())
    }

    /// A call on a connection that was ended because it held too much memory.
    pub(crate) fn shed(shed: &Shed) -> Failure {
        Failure::new(RESOURCE_EXHAUSTED, shed.to_string())
    }

    fn new(code: u32, message: String) -> Failure {
        Failure { code, message: Cow::Owned(message) }
    }

    /// Writes the status to headers or trailers.
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        headers.insert(GRPC_STATUS, HeaderValue::from(self.code));
        if !self.message.is_empty() {
            headers.insert("grpc-message", percent_encoded(&self.message));
        }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure { code: codes::grpc_status(status.code), message: Cow::Owned(status.message) }
    }
}

impl From<Malformed> for Failure {
    fn from(fault: Malformed) -> Failure {
        match fault {
            Malformed::NoMemory(refused) => Status::no_memory("what a request says", refused).into(),
            Malformed::TooMany(refused) => Status::from(refused).into(),
            fault => Failure::unreadable(fault),
        }
    }
}

impl From<prost::DecodeError> for Failure {
    fn from(fault: prost::DecodeError) -> Failure {
        Failure::unreadable(fault)
    }
}

/// The trailers of a successful call.
pub(crate) fn ok_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    trailers
}

/// A message in the form for headers: printable ASCII unchanged, other bytes and `%` as `%XX`. It is shortened if it is longer than clients accept.
fn percent_encoded(text: &str) -> HeaderValue {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = Vec::with_capacity(text.len().min(MESSAGE_BYTES_MAX));
    // Where to cut if the message is too long: the last end of a character that leaves space for the ellipsis.
    let mut cut = 0;
    for character in text.chars() {
        for &byte in character.encode_utf8(&mut [0; 4]).as_bytes() {
            if (b' '..=b'~').contains(&byte) && byte != b'%' {
                out.push(byte);
            } else {
                out.extend([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
        }
        if out.len() > MESSAGE_BYTES_MAX {
            out.truncate(cut);
            out.extend(ELLIPSIS);
            break;
        }
        if out.len() + ELLIPSIS.len() <= MESSAGE_BYTES_MAX {
            cut = out.len();
        }
    }
    HeaderValue::from_maybe_shared(bytes::Bytes::from(out)).expect("printable ASCII only")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &str) {
        assert_eq!(percent_encoded(text), expect);
    }

    #[test]
    fn messages_are_percent_encoded() {
        check("", "");
        check("plain 'text' [1,2].", "plain 'text' [1,2].");
        check("100%\n", "100%25%0A");
        check("grün", "gr%C3%BCn");
        check("\u{7f}", "%7F");
    }

    #[test]
    fn a_message_longer_than_clients_accept_is_cut_at_a_character() {
        let max = MESSAGE_BYTES_MAX;
        check(&"a".repeat(max), &"a".repeat(max));
        check(&"a".repeat(max + 1), &format!("{}...", "a".repeat(max - 3)));
        // An escaped ü has six bytes, and is never cut.
        check(&"ü".repeat(max), &format!("{}...", "%C3%BC".repeat((max - 3) / 6)));
        check(&format!("{}ü", "a".repeat(max - 6)), &format!("{}%C3%BC", "a".repeat(max - 6)));
        check(&format!("{}ü", "a".repeat(max - 5)), &format!("{}...", "a".repeat(max - 5)));
    }

    #[test]
    fn an_empty_message_is_omitted() {
        let mut headers = HeaderMap::new();
        Failure::UNKNOWN_CALL.write(&mut headers);
        assert_eq!(headers.len(), 1);
        assert_eq!(headers["grpc-status"], "12");
    }
}
