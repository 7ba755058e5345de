//! Where do connections come from?
//!
//! TCP ports and Unix sockets, bound in the same way for every front end. This crate knows no protocol.
//!
//! ```
//! use nerite_listen::{Endpoint, bind};
//!
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
//! let address = runtime.block_on(async {
//!     let any_port = Endpoint::Tcp { address: "127.0.0.1".into(), port: 0, reuse_port: false };
//!     bind(&any_port).map(|listener| listener.address())
//! })?;
//! assert!(address.is_some_and(|address| address.port() != 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod forward;
mod gate;
pub mod limits;
mod memory_limited_stream;
mod overseer;
mod peer;
mod peers;
mod progress;
mod sock_diag;
mod stall;
mod timed;
mod tls;
mod unix;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::net;
use std::path::{Path, PathBuf};

use nerite_request::Peer;
use rustix::net::{SocketType, sockopt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

pub use gate::{Gate, shed, until_shed};
pub use limits::{ACCEPT_PAUSE, BACKLOG, HANDSHAKE_MAX};
pub use memory_limited_stream::MemoryLimitedStream;
pub use overseer::{FutureConnection, Overseer, Rules, Served, Why, oversee};
pub use peers::{ConnectionCounts, ConnectionLimits, ConnectionPermit, Full, Peers};
pub use progress::{Awaited, Progress, Snapshot};
pub use stall::{Overdue, StallTimer, TimeLimits, sleep_or_forever};
pub use timed::Timed;
pub use tls::{ApplicationProtocol, Tls, TlsError, TlsFiles};
pub use unix::{OWNER_ONLY, SocketFile, bind_unix, may_be_socket};

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
    /// A Unix socket. A stale socket file at the path, on which no process listens, is replaced.
    Unix {
        /// The path of its file.
        path: PathBuf,
        /// The mode of the file, which says who may connect.
        mode: u32,
    },
}

/// Why the server cannot listen at an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process listens there. The text is Triton's, with its trailing space.
    #[error("Socket '{0}' already in use ")]
    InUse(String),
    /// At the path of a Unix socket is a file that is not a socket.
    #[error("Socket '{0}' cannot be opened: there is a file that is no socket; remove it or name another path")]
    NoSocket(String),
    /// Anything else.
    #[error("Socket '{place}' cannot be opened: {cause}")]
    Refused {
        /// The address and port, or the path.
        place: String,
        /// The system's error.
        cause: io::Error,
    },
}

/// A listening socket. Dropping a Unix socket removes its file.
#[derive(Debug)]
pub struct Listener(Socket);

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix {
        /// Declared first, so that the file is removed before the listener is closed.
        _file: SocketFile,
        listener: UnixListener,
    },
}

/// An accepted connection.
#[derive(Debug)]
pub struct Connection {
    /// Its socket.
    pub stream: Stream,
    /// The client, as the kernel names it.
    pub peer: Peer,
}

/// The socket of a connection.
#[derive(Debug)]
pub enum Stream {
    /// TCP with TCP_NODELAY: a small answer is not delayed until the one before is acknowledged.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
}

impl Endpoint {
    /// A Unix socket to which only the server's user may connect.
    pub fn unix(path: &Path) -> Endpoint {
        Endpoint::Unix { path: path.to_owned(), mode: OWNER_ONLY }
    }
}

impl Stream {
    /// Closes the connection. Sends `message` before, if that is possible without waiting.
    pub fn turn_away(self, message: &[u8]) {
        // The client's bytes are read first. Closing a socket with unread bytes resets the connection, and the message would be lost. Errors are
        // ignored, because a client that has closed the connection or does not read cannot get the message.
        let mut unread = [0; 4096];
        match self {
            Stream::Tcp(stream) => {
                let _ = stream.try_read(&mut unread);
                let _ = stream.try_write(message);
                let _ = rustix::net::shutdown(&stream, rustix::net::Shutdown::Write);
            }
            Stream::Unix(stream) => {
                let _ = stream.try_read(&mut unread);
                let _ = stream.try_write(message);
            }
        }
    }
}

impl Listener {
    /// The address that a TCP listener is bound to. `None` for a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Socket::Tcp(listener) => listener.local_addr().ok(),
            Socket::Unix { .. } => None,
        }
    }

    /// As [`Listener::accept`], but waits first while too many evicted connections of `peers` still have their descriptors.
    pub async fn accept_among(&self, peers: &Peers) -> io::Result<Connection> {
        peers.until_few_closing().await;
        self.accept().await
    }

    /// Waits for the next connection. May be cancelled without losing one.
    pub async fn accept(&self) -> io::Result<Connection> {
        match &self.0 {
            Socket::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // This fails only for a connection that is closed already. The first read finds that.
                let _ = stream.set_nodelay(true);
                let peer = peer::of_tcp(&stream, address);
                Ok(Connection { stream: Stream::Tcp(stream), peer })
            }
            Socket::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                let peer = peer::of_unix(&stream);
                Ok(Connection { stream: Stream::Unix(stream), peer })
            }
        }
    }
}

/// Listens at `endpoint`. Must be called inside the async runtime.
pub fn bind(endpoint: &Endpoint) -> Result<Listener, BindError> {
    let (place, outcome) = match endpoint {
        Endpoint::Tcp { address, port, reuse_port } => {
            (format!("{address}:{port}"), bind_tcp(address, *port, *reuse_port).map(Socket::Tcp))
        }
        Endpoint::Unix { path, mode } => (path.display().to_string(), bind_stream(path, *mode)),
    };
    outcome.map(Listener).map_err(|cause| match cause.kind() {
        io::ErrorKind::AddrInUse if matches!(endpoint, Endpoint::Unix { path, .. } if !may_be_socket(path)) => {
            BindError::NoSocket(place)
        }
        io::ErrorKind::AddrInUse => BindError::InUse(place),
        _ => BindError::Refused { place, cause },
    })
}

fn bind_tcp(address: &str, port: u16, reuse_port: bool) -> io::Result<TcpListener> {
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    let at = (bare, port).to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let socket = if at.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Without it a restart within minutes would find the port in use by closed connections (TIME_WAIT).
    socket.set_reuseaddr(true)?;
    if reuse_port {
        socket.set_reuseport(true)?;
    }
    keep_alive(&socket);
    socket.bind(at)?;
    socket.listen(BACKLOG)
}

fn bind_stream(path: &Path, mode: u32) -> io::Result<Socket> {
    let (file, socket) = bind_unix(path, SocketType::STREAM, mode, BACKLOG.cast_signed())?;
    Ok(Socket::Unix { _file: file, listener: UnixListener::from_std(net::UnixListener::from(socket))? })
}

/// Makes the kernel detect clients whose host does not answer. Accepted connections inherit the listener's options.
fn keep_alive(socket: &TcpSocket) {
    // Errors are ignored: a system that lacks one of these options works without it.
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, limits::KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(socket, limits::KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(socket, limits::KEEPALIVE_COUNT);
    let _ = sockopt::set_tcp_user_timeout(socket, limits::UNACKNOWLEDGED_MS_MAX);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn local(port: u16) -> Endpoint {
        Endpoint::Tcp { address: "127.0.0.1".into(), port, reuse_port: false }
    }

    #[tokio::test]
    async fn a_port_is_bound_once_and_a_port_in_use_is_named() {
        let first = bind(&local(0)).unwrap();
        let address = first.address().unwrap();
        let error = bind(&local(address.port())).unwrap_err();
        assert_eq!(error.to_string(), format!("Socket '{address}' already in use "));
        let (accepted, _client) = tokio::join!(first.accept(), TcpStream::connect(address));
        let accepted = accepted.unwrap();
        let Stream::Tcp(stream) = accepted.stream else { panic!("it came over TCP") };
        assert!(stream.nodelay().unwrap() && sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), limits::KEEPALIVE_IDLE);
        assert_eq!(accepted.peer, Peer::own());
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_the_file_is_removed_with_its_listener() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(net::UnixListener::bind(&path).unwrap());
        let listener = bind(&Endpoint::unix(&path)).unwrap();
        assert!(matches!(bind(&Endpoint::unix(&path)), Err(BindError::InUse(_))));
        let (accepted, _client) = tokio::join!(listener.accept(), UnixStream::connect(&path));
        let accepted = accepted.unwrap();
        assert!(matches!(accepted.stream, Stream::Unix(_)));
        assert_eq!(accepted.peer, Peer::own());
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_file_that_is_not_a_socket_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letter");
        std::fs::write(&path, "dear").unwrap();
        let error = bind(&Endpoint::unix(&path)).unwrap_err().to_string();
        assert!(error.ends_with("there is a file that is no socket; remove it or name another path"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "dear");
    }

    #[tokio::test]
    async fn a_foreign_address_is_refused_with_the_reason() {
        let nowhere = Endpoint::Tcp { address: "203.0.113.7".into(), port: 0, reuse_port: false };
        let text = bind(&nowhere).unwrap_err().to_string();
        assert!(text.starts_with("Socket '203.0.113.7:0' cannot be opened: "), "{text}");
    }
}
