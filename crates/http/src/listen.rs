//! Where do connections come from?

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixSocket};

use crate::limits::BACKLOG;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A TCP port.
    Tcp {
        /// The address, as the operator wrote it.
        address: String,
        /// The port; 0 for any that is free.
        port: u16,
        /// Whether other processes may listen there as well (SO_REUSEPORT).
        reuse_port: bool,
    },
    /// A Unix socket. A socket file there that nobody listens at any more is replaced.
    Unix(PathBuf),
}

/// Why nobody can be heard there.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else listens there. The text, trailing space included, is Triton's.
    #[error("Socket '{0}' already in use ")]
    InUse(String),
    /// Anything else.
    #[error("Socket '{place}' cannot be opened: {cause}")]
    Refused {
        /// The address and port, or the path.
        place: String,
        /// What the system says.
        cause: io::Error,
    },
}

/// A socket that hears connections.
#[derive(Debug)]
pub struct Listener(pub(crate) Socket);

#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// The address that a TCP listener really got.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Socket::Tcp(listener) => listener.local_addr().ok(),
            Socket::Unix(..) => None,
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Socket::Unix(_, path) = self {
            // Already gone is as good.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Listens at `endpoint`. To be called inside the async runtime.
pub fn bind(endpoint: &Endpoint) -> Result<Listener, BindError> {
    let (place, outcome) = match endpoint {
        Endpoint::Tcp { address, port, reuse_port } => {
            (format!("{address}:{port}"), bind_tcp(address, *port, *reuse_port).map(Socket::Tcp))
        }
        Endpoint::Unix(path) => {
            let socket = bind_unix(path).map(|listener| Socket::Unix(listener, path.clone()));
            (path.display().to_string(), socket)
        }
    };
    outcome.map(Listener).map_err(|cause| match cause.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse(place),
        _ => BindError::Refused { place, cause },
    })
}

fn bind_tcp(address: &str, port: u16, reuse_port: bool) -> io::Result<TcpListener> {
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    let at = (bare, port).to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let socket = if at.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    if reuse_port {
        socket.set_reuseport(true)?;
    }
    socket.bind(at)?;
    socket.listen(BACKLOG)
}

fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    socket.listen(BACKLOG)
}
