//! How long does a client wait, whom does it believe, and what does it bring?

use std::time::Duration;

use crate::Tls;
use crate::token::Token;

/// How a client of either protocol connects and asks. Without any of it a client waits as long as the system does, and believes the
/// certificates that the system believes.
///
/// ```no_run
/// use std::time::Duration;
///
/// use nerite_client::{ClientOptions, Tls, http};
///
/// # fn make() -> Result<(), nerite_client::Error> {
/// let options = ClientOptions::default()
///     .connect_max(Duration::from_secs(2))
///     .request_max(Duration::from_secs(30))
///     .tls(Tls::with_roots_file("/etc/my/ca.pem")?);
/// let client = http::Client::with_options("https://models.example:8443", &options)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    pub(crate) connect_max: Option<Duration>,
    pub(crate) request_max: Option<Duration>,
    pub(crate) tls: Option<Tls>,
    pub(crate) token: Token,
}

impl ClientOptions {
    /// How long it may take to connect, agreeing on TLS included. Beyond it a call is an [`Error::Connect`](crate::Error::Connect).
    pub fn connect_max(mut self, limit: Duration) -> ClientOptions {
        self.connect_max = Some(limit);
        self
    }

    /// How long one call may take from its beginning to the end of its answer. Beyond it the call is an
    /// [`Error::TimedOut`](crate::Error::TimedOut) and its connection is given up, by which the server learns that nobody waits.
    /// Streams, which may be as long as they like, have no such limit.
    pub fn request_max(mut self, limit: Duration) -> ClientOptions {
        self.request_max = Some(limit);
        self
    }

    /// What to believe, and to show, at addresses of `https://`.
    pub fn tls(mut self, tls: Tls) -> ClientOptions {
        self.tls = Some(tls);
        self
    }
    /// Brings the secret of a token that the server knows, where it asks for one (`--access-tokens-file`). Without it, `NERITE_TOKEN` in the
    /// environment; an empty one brings none. Without TLS whoever sees the network sees it.
    pub fn token(mut self, secret: &str) -> ClientOptions {
        self.token = Token::new(secret);
        self
    }
}
