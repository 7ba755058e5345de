//! Which settings does the gRPC port have?

use std::time::Duration;

use nerite_listen::{HANDSHAKE_MAX, Tls};

/// The settings of the gRPC port.
#[derive(Clone, Debug)]
pub struct Options {
    /// The TLS settings of TCP connections, if any. Unix sockets are not encrypted: the file system decides who may connect there.
    pub tls: Option<Tls>,
    /// The compression level of inference responses to clients that accept compression.
    pub response_compression: CompressionLevel,
    /// The most responses of one request of a stream that may wait to be sent. Beyond this the model waits.
    pub response_pool_max: usize,
    /// The time without traffic after which the server sends a keepalive ping.
    pub keepalive_time: Duration,
    /// The time without an answer to a ping after which the connection is closed.
    pub keepalive_timeout: Duration,
    /// The most time for a client's TLS handshake. `None` for no limit.
    pub handshake_max: Option<Duration>,
    /// The age at which the graceful shutdown of a connection begins. `None` for no limit.
    pub connection_age_max: Option<Duration>,
    /// The most time for that shutdown. Then the connection is closed. `None` for no limit.
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

/// The compression level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompressionLevel {
    /// No compression.
    #[default]
    None,
    /// The fastest compression.
    Low,
    /// The usual compression.
    Medium,
    /// The best compression.
    High,
}
