//! Where is the session socket of a server, and is the server trusted?

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::SessionOptions;
use super::socket::{SessionServer, Socket};
use super::trust::{Directory, Distrust, Trust};
use crate::Error;

const SOCKET: &str = "NERITE_SESSION_SOCKET";
/// The name of the socket of the user's first server.
const FIRST: &str = "session.sock";

/// The path of the session socket that the first server of this user makes, unless `NERITE_SESSION_SOCKET` names another path.
pub fn default_path() -> PathBuf {
    named(SOCKET).map_or_else(|| own_directory().join(FIRST), PathBuf::from)
}

/// Where the session socket of the server with this HTTP port can be, the most specific place first.
pub(crate) fn paths_of(port: Option<u16>) -> Vec<PathBuf> {
    paths_in(&own_directory(), named(SOCKET).map(PathBuf::from), port)
}

fn paths_in(directory: &Path, named: Option<PathBuf>, port: Option<u16>) -> Vec<PathBuf> {
    if let Some(named) = named {
        return vec![named];
    }
    let of_port = port.map(|port| directory.join(format!("session-{port}.sock")));
    of_port.into_iter().chain([directory.join(FIRST)]).collect()
}

/// The server that listens at the session socket `path`, if this program trusts it. Nothing is sent. Call it inside a tokio runtime.
pub fn session_server(path: impl AsRef<Path>, options: &SessionOptions) -> Result<SessionServer, Error> {
    connect(path.as_ref(), options)?.peer().map_err(|error| not_connected(path.as_ref(), &error))
}

/// Connects, and checks whether this program trusts the server.
pub(super) fn connect(path: &Path, options: &SessionOptions) -> Result<Socket, Error> {
    let trust = Trust { own_uid: own_uid(), server_uid: options.named_uid()? };
    let untrusted = |Distrust { reason, cure }| Error::Untrusted { endpoint: path.display().to_string(), reason, cure };
    // A directory that the program chose is not checked. The default one could have been made by any user first.
    let directory = path.parent().filter(|directory| *directory == own_directory()).and_then(Directory::look);
    trust.check(directory.as_ref(), None).map_err(untrusted)?;
    let socket = Socket::connect(path).map_err(|error| not_connected(path, &error))?;
    let peer = socket.peer().map_err(|error| not_connected(path, &error))?;
    trust.check(directory.as_ref(), Some(peer.uid)).map_err(untrusted)?;
    Ok(socket)
}

pub(super) fn not_connected(path: &Path, error: &std::io::Error) -> Error {
    Error::Connect { endpoint: path.display().to_string(), reason: error.to_string() }
}

/// The directory in which this user's servers make their session sockets.
fn own_directory() -> PathBuf {
    match named("XDG_RUNTIME_DIR") {
        Some(directory) => PathBuf::from(directory).join("nerite"),
        None => PathBuf::from(format!("/tmp/nerite-{}", own_uid())),
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn named(variable: &str) -> Option<OsString> {
    std::env::var_os(variable).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_names_a_server_and_without_one_it_is_the_first() {
        let paths = |named: Option<&str>, port| paths_in(Path::new("/run/nerite"), named.map(PathBuf::from), port);
        let (of_port, first) = ("/run/nerite/session-8010.sock", "/run/nerite/session.sock");
        assert_eq!(paths(None, Some(8010)), [of_port, first].map(PathBuf::from));
        assert_eq!(paths(None, None), [PathBuf::from(first)]);
        assert_eq!(paths(Some("/elsewhere"), Some(8010)), [PathBuf::from("/elsewhere")]);
    }
}
