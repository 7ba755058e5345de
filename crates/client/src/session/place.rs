//! Where is the session socket of the server that a client talks to?

use std::path::{Path, PathBuf};

use super::Session;
use crate::report::ServerReport;
use crate::{Error, grpc, http};

const SOCKET: &str = "NERITE_SESSION_SOCKET";

/// Where a server of this user puts its session socket, unless `NERITE_SESSION_SOCKET` names another place.
pub fn default_path() -> PathBuf {
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(path) = named(SOCKET) {
        return path.into();
    }
    let directory = match named("XDG_RUNTIME_DIR") {
        Some(directory) => PathBuf::from(directory).join("nerite"),
        None => PathBuf::from(format!("/tmp/nerite-{}", rustix::process::getuid().as_raw())),
    };
    directory.join("session.sock")
}

impl http::Client {
    /// A session with this very server, for leases and for outputs of unknown size, if its socket is at [`default_path`]; `None`
    /// with a server on another host, or of another kind.
    pub async fn session(&self) -> Result<Option<Session>, Error> {
        self.session_at(default_path()).await
    }

    /// As `session`, with a socket at `path`.
    pub async fn session_at(&self, path: impl AsRef<Path>) -> Result<Option<Session>, Error> {
        Ok(beside(&self.server_metadata().await?, path.as_ref()).await)
    }
}

impl grpc::Client {
    /// A session with this very server, for leases and for outputs of unknown size, if its socket is at [`default_path`]; `None`
    /// with a server on another host, or of another kind.
    pub async fn session(&self) -> Result<Option<Session>, Error> {
        self.session_at(default_path()).await
    }

    /// As `session`, with a socket at `path`.
    pub async fn session_at(&self, path: impl AsRef<Path>) -> Result<Option<Session>, Error> {
        Ok(beside(&self.server_metadata().await?, path.as_ref()).await)
    }
}

/// A session with the very server that this metadata is of, if the socket at `path` is its own.
async fn beside(server: &ServerReport, path: &Path) -> Option<Session> {
    let id = server.server_id()?;
    let session = Session::connect(path).await.ok()?;
    (session.terms().server_id == id).then_some(session)
}
