//! How long does a client wait, and whom does it believe?

use std::time::Duration;

use crate::Tls;

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
}
