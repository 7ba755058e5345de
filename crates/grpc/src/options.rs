//! What does an operator choose?

use std::time::Duration;

use nerite_listen::{HANDSHAKE_MAX, Tls};

/// How the gRPC port behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// What TCP connections are secured with, if anything. Unix sockets stay plain: who may connect there is the file system's affair.
    pub tls: Option<Tls>,
    /// How hard inference responses are compressed for clients that accept it.
    pub response_compression: CompressionLevel,
    /// Responses of one request of a stream that may wait to be sent; the model waits then.
    pub response_pool_max: usize,
    /// After this much silence the client is asked whether it is still there.
    pub keepalive_time: Duration,
    /// After this long without an answer to that it is not.
    pub keepalive_timeout: Duration,
    /// Time that a client has for a TLS handshake.
    pub handshake_max: Option<Duration>,
    /// After this long a connection is asked to end.
    pub connection_age_max: Option<Duration>,
    /// After this long more it is ended.
    pub connection_age_grace: Option<Duration>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            tls: None,
            response_compression: CompressionLevel::None,
            response_pool_max: i32::MAX as usize,
            keepalive_time: Duration::from_hours(2),
            keepalive_timeout: Duration::from_secs(20),
            handshake_max: Some(HANDSHAKE_MAX),
            connection_age_max: None,
            connection_age_grace: None,
        }
    }
}

/// How hard to compress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompressionLevel {
    /// Not at all.
    #[default]
    None,
    /// Quickly.
    Low,
    /// As is usual.
    Medium,
    /// As well as possible.
    High,
}
