//! How does the server listen at an address, and what does it accept there?

use std::io::{self, Read, Write};
use std::net::{self, IpAddr, Shutdown, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nerite_request::Peer;
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, acceptfrom_with, recv, send, socket_with, sockopt,
};
use tokio::net::TcpStream;

use crate::closers::CLOSERS;
use crate::limits::{self, BACKLOG};
use crate::local_addresses;
use crate::local_stream::LocalStream;
use crate::peer;
use crate::peers::ConnectionPermit;
use crate::sock_diag;
use crate::trusted_proxies::Proxies;
use crate::unix::{OWNER_ONLY, SocketFile, bind_unix, may_be_socket};
use crate::unix_socket::UnixSocket;

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
        /// The mode of the file, which decides who may connect.
        mode: u32,
        /// Whether it preserves the boundaries of packets (`SOCK_SEQPACKET`). Otherwise it is a stream.
        packets: bool,
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
pub struct Listener {
    socket: Socket,
    proxies: Proxies,
    is_closed: AtomicBool,
    is_draining: AtomicBool,
}

#[derive(Debug)]
enum Socket {
    Tcp(net::TcpListener),
    Unix {
        /// Declared first, so that the file is removed before the listener is closed.
        file: SocketFile,
        listener: UnixSocket,
    },
}

/// An accepted connection.
#[derive(Debug)]
pub struct Connection {
    socket: Accepted,
    /// The client, as the kernel identifies it. Until the header of a proxy is read, the proxy.
    pub peer: Peer,
    /// The address of the proxy whose header comes first.
    pub(crate) proxy: Option<IpAddr>,
}

/// A non-blocking socket that is not registered with an async runtime yet.
#[derive(Debug)]
enum Accepted {
    Tcp(net::TcpStream),
    Unix(UnixSocket),
}

/// The socket of a connection in an async runtime.
#[derive(Debug)]
pub enum Stream {
    /// TCP with TCP_NODELAY: a small answer is not delayed until the one before is acknowledged.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(LocalStream),
}

impl Endpoint {
    /// A Unix socket for streams, to which only the server's user may connect.
    pub fn unix(path: &Path) -> Endpoint {
        Endpoint::Unix { path: path.to_owned(), mode: OWNER_ONLY, packets: false }
    }
}

impl Connection {
    /// A connection over TCP whose client is known.
    pub(crate) fn of_tcp(stream: net::TcpStream, peer: Peer) -> Connection {
        Connection { socket: Accepted::Tcp(stream), peer, proxy: None }
    }

    /// Registers the socket with the current async runtime. An error means that the runtime is being shut down. The connection counts as open until its socket
    /// is closed, which may be after the permit is dropped.
    pub fn into_stream(self, permit: &ConnectionPermit) -> io::Result<Stream> {
        match self.socket {
            Accepted::Tcp(stream) => TcpStream::from_std(stream).map(Stream::Tcp),
            Accepted::Unix(mut socket) => {
                socket.hold(permit.socket_entry());
                LocalStream::new(socket).map(Stream::Unix)
            }
        }
    }

    /// The non-blocking Unix socket, which is not registered with an async runtime yet. `None` for TCP.
    pub fn into_unix(self) -> Option<UnixSocket> {
        match self.socket {
            Accepted::Tcp(_) => None,
            Accepted::Unix(socket) => Some(socket),
        }
    }

    /// Whether the connection is over TCP.
    pub fn is_tcp(&self) -> bool {
        matches!(self.socket, Accepted::Tcp(_))
    }

    /// Sends `message`, if that is possible without waiting, and closes the connection.
    pub fn reject(self, message: &[u8]) {
        // The client's bytes are read first. Closing a socket with unread bytes resets the connection, and the message would be lost. Errors are
        // ignored, because a client that has closed the connection or does not read cannot get the message.
        let mut unread = [0; 4096];
        match self.socket {
            Accepted::Tcp(mut stream) => {
                let _ = stream.read(&mut unread);
                let _ = stream.write(message);
                let _ = stream.shutdown(Shutdown::Write);
            }
            Accepted::Unix(socket) => {
                if !socket.takes_descriptors() {
                    let _ = recv(&socket, &mut unread, RecvFlags::DONTWAIT);
                }
                let _ = send(&socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            }
        }
    }
}

impl Listener {
    fn new(socket: Socket) -> Listener {
        let (is_closed, is_draining) = (AtomicBool::new(false), AtomicBool::new(false));
        Listener { socket, proxies: Proxies::default(), is_closed, is_draining }
    }

    /// The same listener behind these proxies. They reach a TCP port alone.
    pub fn behind(self, proxies: Proxies) -> Listener {
        Listener { proxies, ..self }
    }

    /// The address that a TCP listener is bound to. `None` for a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Tcp(listener) => listener.local_addr().ok(),
            Socket::Unix { .. } => None,
        }
    }

    /// The file of a Unix socket.
    pub fn file(&self) -> Option<&SocketFile> {
        match &self.socket {
            Socket::Tcp(_) => None,
            Socket::Unix { file, .. } => Some(file),
        }
    }

    /// Waits for the next connection, and blocks the thread meanwhile. An error if [`Listener::close`] or
    /// [`Listener::drain`] is called in another thread.
    pub fn accept(&self) -> io::Result<Connection> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, address) = retry_on_intr(|| acceptfrom_with(self.fd(), flags))?;
        Ok(match &self.socket {
            Socket::Tcp(_) => {
                let stream = net::TcpStream::from(socket);
                // This fails only for a connection that is closed already. The first read reports that.
                let _ = stream.set_nodelay(true);
                let address = address.and_then(|address| SocketAddr::try_from(address).ok());
                let proxy = address.map(|address| address.ip()).filter(|ip| self.proxies.trusted.contains(*ip));
                let peer = match (proxy, address) {
                    (Some(proxy), _) => peer::of_claimed(proxy),
                    (None, Some(address)) => peer::of_tcp(&stream, address),
                    (None, None) => Peer::Unknown,
                };
                Connection { proxy, ..Connection::of_tcp(stream, peer) }
            }
            Socket::Unix { listener, .. } => {
                let peer = peer::of_unix(&socket);
                let socket = UnixSocket::accepted(socket, listener.takes_descriptors(), &peer);
                Connection { socket: Accepted::Unix(socket), peer, proxy: None }
            }
        })
    }

    /// Refuses connections from now on. A thread that waits in [`Listener::accept`] returns.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.shut_down();
    }

    /// Refuses new connections. Connections that wait at a Unix socket are still accepted, and then [`Listener::accept`] fails. The kernel closes connections
    /// that wait at a TCP port.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
        self.shut_down();
    }

    /// Whether [`Listener::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Whether no connection may be accepted, because many that were rejected here are still being closed.
    pub(crate) fn has_many_closing(&self) -> bool {
        matches!(&self.socket, Socket::Unix { listener, .. } if listener.takes_descriptors() && CLOSERS.has_many_rejected())
    }

    /// The time that a proxy has for its header.
    pub(crate) fn header_max(&self) -> Option<Duration> {
        self.proxies.header_max
    }

    /// Whether [`Listener::drain`] was called.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    fn shut_down(&self) {
        // `shutdown` cannot fail for a listening socket.
        let _ = rustix::net::shutdown(self.fd(), rustix::net::Shutdown::Both);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(listener) => listener.as_fd(),
            Socket::Unix { listener, .. } => listener.as_fd(),
        }
    }
}

/// Listens at `endpoint`.
pub fn bind(endpoint: &Endpoint) -> Result<Listener, BindError> {
    let (place, outcome) = match endpoint {
        Endpoint::Tcp { address, port, reuse_port } => {
            (format!("{address}:{port}"), bind_tcp(address, *port, *reuse_port).map(Socket::Tcp))
        }
        Endpoint::Unix { path, mode, packets } => (path.display().to_string(), bind_path(path, *mode, *packets)),
    };
    outcome.map(Listener::new).map_err(|cause| match cause.kind() {
        io::ErrorKind::AddrInUse if matches!(endpoint, Endpoint::Unix { path, .. } if !may_be_socket(path)) => {
            BindError::NoSocket(place)
        }
        io::ErrorKind::AddrInUse => BindError::InUse(place),
        _ => BindError::Refused { place, cause },
    })
}

fn bind_tcp(address: &str, port: u16, reuse_port: bool) -> io::Result<net::TcpListener> {
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    let at = (bare, port).to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Without this option, a restart within minutes would find the port in use by closed connections (TIME_WAIT).
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if reuse_port {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    keep_alive(&socket);
    rustix::net::bind(&socket, &at)?;
    rustix::net::listen(&socket, BACKLOG.cast_signed())?;
    let listener = net::TcpListener::from(socket);
    local_addresses::prepare();
    sock_diag::prepare(listener.local_addr()?);
    Ok(listener)
}

fn bind_path(path: &Path, mode: u32, packets: bool) -> io::Result<Socket> {
    let kind = if packets { SocketType::SEQPACKET } else { SocketType::STREAM };
    let (file, listener) = bind_unix(path, kind, mode, BACKLOG.cast_signed())?;
    rustix::io::ioctl_fionbio(&listener, false)?;
    Ok(Socket::Unix { file, listener })
}

/// Makes the kernel detect clients whose host does not answer. Accepted connections inherit the listener's options.
fn keep_alive(socket: &OwnedFd) {
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
    use std::os::unix;

    use super::*;

    fn local(port: u16) -> Endpoint {
        Endpoint::Tcp { address: "127.0.0.1".into(), port, reuse_port: false }
    }

    #[test]
    fn a_port_is_bound_once_and_a_port_in_use_is_named() {
        let first = bind(&local(0)).unwrap();
        let address = first.address().unwrap();
        let error = bind(&local(address.port())).unwrap_err();
        assert_eq!(error.to_string(), format!("Socket '{address}' already in use "));
        let _client = net::TcpStream::connect(address).unwrap();
        let accepted = first.accept().unwrap();
        assert_eq!(accepted.peer, Peer::own());
        let Accepted::Tcp(stream) = accepted.socket else { panic!("it came over TCP") };
        assert!(stream.nodelay().unwrap() && sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), limits::KEEPALIVE_IDLE);
        let not_blocking = (&stream).read(&mut [0]).unwrap_err();
        assert_eq!(not_blocking.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_client_that_is_rejected_gets_the_message_and_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let (tcp, unix) = (bind(&local(0)).unwrap(), bind(&Endpoint::unix(&path)).unwrap());
        let mut client = net::TcpStream::connect(tcp.address().unwrap()).unwrap();
        let mut answer = String::new();
        client.write_all(b"let me in").unwrap();
        tcp.accept().unwrap().reject(b"full");
        client.read_to_string(&mut answer).unwrap();
        let mut client = unix::net::UnixStream::connect(&path).unwrap();
        unix.accept().unwrap().reject(b" as well");
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "full as well");
    }

    #[test]
    fn a_stale_socket_is_replaced_and_the_file_is_removed_with_its_listener() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(unix::net::UnixListener::bind(&path).unwrap());
        let listener = bind(&Endpoint::unix(&path)).unwrap();
        assert!(matches!(bind(&Endpoint::unix(&path)), Err(BindError::InUse(_))));
        let _client = unix::net::UnixStream::connect(&path).unwrap();
        let accepted = listener.accept().unwrap();
        assert!(!accepted.is_tcp());
        assert_eq!(accepted.peer, Peer::own());
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_unix_socket_has_the_type_of_its_endpoint() {
        let folder = tempfile::tempdir().unwrap();
        for (packets, kind) in [(false, SocketType::STREAM), (true, SocketType::SEQPACKET)] {
            let path = folder.path().join("socket");
            let listener = bind(&Endpoint::Unix { path, mode: OWNER_ONLY, packets }).unwrap();
            assert_eq!(sockopt::socket_type(listener.fd()).unwrap(), kind);
            assert!(listener.file().is_some_and(SocketFile::is_there));
        }
    }

    #[test]
    fn a_closed_listener_accepts_and_admits_no_connection() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        for endpoint in [local(0), Endpoint::unix(&path)] {
            let listener = bind(&endpoint).unwrap();
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| listener.accept().is_err());
                listener.close();
                assert!(waits.join().unwrap());
            });
            assert!(listener.is_closed());
            let refused = match listener.address() {
                Some(address) => net::TcpStream::connect(address).unwrap_err(),
                None => unix::net::UnixStream::connect(&path).unwrap_err(),
            };
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        }
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letter");
        std::fs::write(&path, "dear").unwrap();
        let error = bind(&Endpoint::unix(&path)).unwrap_err().to_string();
        assert!(error.ends_with("there is a file that is no socket; remove it or name another path"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "dear");
    }

    #[test]
    fn a_foreign_address_is_refused_with_the_reason() {
        let nowhere = Endpoint::Tcp { address: "203.0.113.7".into(), port: 0, reuse_port: false };
        let text = bind(&nowhere).unwrap_err().to_string();
        assert!(text.starts_with("Socket '203.0.113.7:0' cannot be opened: "), "{text}");
    }
}
