//! Where do connections come from?
//!
//! TCP ports and Unix sockets, bound alike for every front end. What is spoken over them is the front end's affair.
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
mod unix;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::net;
use std::path::{Path, PathBuf};

use nerite_request::Peer;
use rustix::net::{SocketType, sockopt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

pub use gate::{Gate, shed, until_shed};
pub use limits::{ACCEPT_PAUSE, BACKLOG};
pub use memory_limited_stream::MemoryLimitedStream;
pub use overseer::{Conversation, Overseer, Rules, Served, Why, oversee};
pub use peers::{ConnectionCounts, ConnectionLimits, ConnectionPermit, Full, Peers};
pub use progress::{Awaited, Progress, Snapshot};
pub use stall::{Overdue, StallTimer, TimeLimits};
pub use timed::Timed;
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
    /// A Unix socket. A socket file there that nobody listens at any more is replaced.
    Unix {
        /// Where its file is made.
        path: PathBuf,
        /// The file's mode: who may connect.
        mode: u32,
    },
}

/// Why nobody can be heard there.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else listens there. The text, trailing space included, is Triton's.
    #[error("Socket '{0}' already in use ")]
    InUse(String),
    /// The path of a Unix socket is a file's.
    #[error("Socket '{0}' cannot be opened: there is a file that is no socket; remove it or name another path")]
    NoSocket(String),
    /// Anything else.
    #[error("Socket '{place}' cannot be opened: {cause}")]
    Refused {
        /// The address and port, or the path.
        place: String,
        /// What the system says.
        cause: io::Error,
    },
}

/// A socket that hears connections. A Unix socket takes its file with it.
#[derive(Debug)]
pub struct Listener(Socket);

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix {
        /// It is dropped before the listener is closed.
        _file: SocketFile,
        listener: UnixListener,
    },
}

/// A connection, and who is at its other end.
#[derive(Debug)]
pub struct Connection {
    /// What the bytes come by.
    pub stream: Stream,
    /// The client, as the kernel names it.
    pub peer: Peer,
}

/// What the bytes of a connection come by.
#[derive(Debug)]
pub enum Stream {
    /// Over TCP; small answers do not wait for the acknowledgement of the ones before.
    Tcp(TcpStream),
    /// Over a Unix socket.
    Unix(UnixStream),
}

impl Endpoint {
    /// A Unix socket of the server's user alone.
    pub fn unix(path: &Path) -> Endpoint {
        Endpoint::Unix { path: path.to_owned(), mode: OWNER_ONLY }
    }
}

impl Stream {
    /// Closes the connection with a last word, as far as it can be said without waiting.
    pub fn turn_away(self, word: &[u8]) {
        // What the client sent is read first: a socket that is closed with bytes unread takes back what it sent. A client that is
        // gone, or that takes nothing, learns nothing.
        let mut unread = [0; 4096];
        match self {
            Stream::Tcp(stream) => {
                let _ = stream.try_read(&mut unread);
                let _ = stream.try_write(word);
                let _ = rustix::net::shutdown(&stream, rustix::net::Shutdown::Write);
            }
            Stream::Unix(stream) => {
                let _ = stream.try_read(&mut unread);
                let _ = stream.try_write(word);
            }
        }
    }
}

impl Listener {
    /// The address that a TCP listener really got; `None` for a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Socket::Tcp(listener) => listener.local_addr().ok(),
            Socket::Unix { .. } => None,
        }
    }

    /// As [`Listener::accept`], once there is a descriptor to spare for one more of `peers`.
    pub async fn accept_among(&self, peers: &Peers) -> io::Result<Connection> {
        peers.until_few_leave().await;
        self.accept().await
    }

    /// Waits for the next connection. Dropping the future loses none.
    pub async fn accept(&self) -> io::Result<Connection> {
        match &self.0 {
            Socket::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // Refused only for a connection that is gone already, which shows soon enough.
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

/// Listens at `endpoint`. To be called inside the async runtime.
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
    // Without it a restart within minutes finds the port taken by connections that are long closed.
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

/// Has the kernel notice clients whose host is gone. The connections of a listener begin with its options.
fn keep_alive(socket: &TcpSocket) {
    // A system that knows one of these options no better does without it.
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
    async fn a_port_is_heard_once_and_a_taken_one_is_named() {
        let first = bind(&local(0)).unwrap();
        let address = first.address().unwrap();
        let error = bind(&local(address.port())).unwrap_err();
        assert_eq!(error.to_string(), format!("Socket '{address}' already in use "));
        let (heard, _client) = tokio::join!(first.accept(), TcpStream::connect(address));
        let heard = heard.unwrap();
        let Stream::Tcp(stream) = heard.stream else { panic!("it came over TCP") };
        assert!(stream.nodelay().unwrap() && sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), limits::KEEPALIVE_IDLE);
        assert_eq!(heard.peer, Peer::own());
    }

    #[tokio::test]
    async fn a_socket_nobody_listens_at_is_replaced_and_goes_with_its_listener() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(net::UnixListener::bind(&path).unwrap());
        let listener = bind(&Endpoint::unix(&path)).unwrap();
        assert!(matches!(bind(&Endpoint::unix(&path)), Err(BindError::InUse(_))));
        let (heard, _client) = tokio::join!(listener.accept(), UnixStream::connect(&path));
        let heard = heard.unwrap();
        assert!(matches!(heard.stream, Stream::Unix(_)));
        assert_eq!(heard.peer, Peer::own());
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letter");
        std::fs::write(&path, "dear").unwrap();
        let error = bind(&Endpoint::unix(&path)).unwrap_err().to_string();
        assert!(error.ends_with("there is a file that is no socket; remove it or name another path"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "dear");
    }

    #[tokio::test]
    async fn an_address_of_nobody_is_refused_with_its_reason() {
        let nowhere = Endpoint::Tcp { address: "203.0.113.7".into(), port: 0, reuse_port: false };
        let text = bind(&nowhere).unwrap_err().to_string();
        assert!(text.starts_with("Socket '203.0.113.7:0' cannot be opened: "), "{text}");
    }
}
