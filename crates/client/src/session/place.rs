//! Where is the session socket of the server that a client talks to?

use std::path::{Path, PathBuf};

use super::Session;
use crate::report::ServerReport;

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

/// A session with the very server that this metadata is of, if the socket at `path` is its own.
pub(crate) async fn beside(server: &ServerReport, path: &Path) -> Option<Session> {
    let id = server.server_id()?;
    let session = Session::connect(path).await.ok()?;
    (session.terms().server_id == id).then_some(session)
}
