//! How are requests sent, and responses read to their end, with the least effort?
//!
//! The load generator shares the machine with the server, so a request is bytes that were made before, sockets block, frames of HTTP/2 are written and read
//! by hand, and responses are not parsed further than to their end.

mod encode;
mod frames;
mod grpc;
mod http;
mod messages;
mod session;
mod socket;
mod stream;

use std::io::{Error, ErrorKind, Result};
use std::time::Instant;

pub(crate) use self::encode::Encoder;
pub(crate) use self::frames::Headers;
pub(crate) use self::grpc::Grpc;
pub(crate) use self::http::Http;
pub(crate) use self::session::{SessionKind, SessionLink};
pub(crate) use self::socket::Endpoint;
pub(crate) use self::socket::Socket;
pub(crate) use self::stream::Stream;

/// A connection that has one request under way at a time.
pub(crate) trait Connection {
    /// Sends a request, and reads its response to the end.
    fn exchange(&mut self, request: &[u8]) -> Result<Times>;

    /// When the responses of the last request came, if there may be several.
    fn responses(&self) -> &[Instant] {
        &[]
    }
}

/// The times of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// When the request was to be sent.
    pub(crate) start: Instant,
    /// The last byte of the request was sent.
    pub(crate) sent: Instant,
    /// The first byte of the response was received.
    pub(crate) first: Instant,
    /// The last byte of the response was received.
    pub(crate) end: Instant,
    /// Requests that were sent together: 1, except for calls of a session that share a packet.
    pub(crate) requests: u32,
    /// Responses: one for each request, except for decoupled models.
    pub(crate) responses: u32,
}

/// The error of a server that answers what it should not.
fn bad(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}
