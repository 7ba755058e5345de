//! Where is the session socket of a server, and is the server trusted?

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::SessionOptions;
use super::socket::{SessionServer, Socket};
use super::trust::{Directory, Distrust, Trust};
use crate::Error;

const SOCKET: &str = "NERITE_SESSION_SOCKET";

/// The path of the session socket that a server of this user makes, unless `NERITE_SESSION_SOCKET` names another path.
pub fn default_path() -> PathBuf {
    named(SOCKET).map_or_else(own_path, PathBuf::from)
}

/// The server that listens at the session socket `path`, if this program trusts it. Nothing is sent. Call it inside a tokio runtime.
pub fn session_server(path: impl AsRef<Path>, options: &SessionOptions) -> Result<SessionServer, Error> {
    connect(path.as_ref(), options)?.peer().map_err(|error| not_connected(path.as_ref(), &error))
}

/// Connects, and checks whether this program trusts the server.
pub(super) fn connect(path: &Path, options: &SessionOptions) -> Result<Socket, Error> {
    let trust = Trust { own_uid: own_uid(), server_uid: options.named_uid()? };
    let untrusted = |Distrust { reason, cure }| Error::Untrusted { endpoint: path.display().to_string(), reason, cure };
    // A path that the program chose is not checked. At the default path, any user could have made the socket first.
    let directory = path.parent().filter(|_| path == own_path()).and_then(Directory::look);
    trust.check(directory.as_ref(), None).map_err(untrusted)?;
    let socket = Socket::connect(path).map_err(|error| not_connected(path, &error))?;
    let peer = socket.peer().map_err(|error| not_connected(path, &error))?;
    trust.check(directory.as_ref(), Some(peer.uid)).map_err(untrusted)?;
    Ok(socket)
}

pub(super) fn not_connected(path: &Path, error: &std::io::Error) -> Error {
    Error::Connect { endpoint: path.display().to_string(), reason: error.to_string() }
}

fn own_path() -> PathBuf {
    let directory = match named("XDG_RUNTIME_DIR") {
        Some(directory) => PathBuf::from(directory).join("nerite"),
        None => PathBuf::from(format!("/tmp/nerite-{}", own_uid())),
    };
    directory.join("session.sock")
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn named(variable: &str) -> Option<OsString> {
    std::env::var_os(variable).filter(|value| !value.is_empty())
}
