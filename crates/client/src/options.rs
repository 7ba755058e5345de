//! How long does a client wait, which certificates does it trust, and which token does it send?

use std::time::Duration;

use crate::Tls;
use crate::token::Token;

/// How a client of either protocol connects and calls. By default a client waits as long as the system does, and trusts the certificates that the
/// system trusts.
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
    /// How long it may take to connect, including the TLS handshake. After that a call fails with [`Error::Connect`](crate::Error::Connect).
    pub fn connect_max(mut self, limit: Duration) -> ClientOptions {
        self.connect_max = Some(limit);
        self
    }

    /// How long one call may take from its beginning to the end of its answer. After that the call fails with [`Error::TimedOut`](crate::Error::TimedOut). Its
    /// connection or its stream of HTTP/2 is closed, so the server notices that nobody waits. Calls of streams have no such limit.
    pub fn request_max(mut self, limit: Duration) -> ClientOptions {
        self.request_max = Some(limit);
        self
    }

    /// The certificates to trust and to present at addresses of `https://`.
    pub fn tls(mut self, tls: Tls) -> ClientOptions {
        self.tls = Some(tls);
        self
    }
    /// Sends the secret of a token, for servers that require one (`--access-tokens-file`). The default is `NERITE_TOKEN` in the environment. An empty
    /// text sends none. Without TLS, anyone who can read the network traffic can read the secret.
    pub fn token(mut self, secret: &str) -> ClientOptions {
        self.token = Token::new(secret);
        self
    }
}
