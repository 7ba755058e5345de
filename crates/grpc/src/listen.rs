//! Where do connections come from?

use std::net::SocketAddr;
use std::os::unix::{fs::FileTypeExt, net};
use std::path::{Path, PathBuf};
use std::{fs, io};

use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

use crate::limits::BACKLOG;

/// A place where clients can connect.
#[derive(Debug)]
pub enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(OwnedSocket),
}

/// A Unix socket that takes its file with it.
#[derive(Debug)]
pub struct OwnedSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for OwnedSocket {
    fn drop(&mut self) {
        // Already gone is as good.
        let _ = fs::remove_file(&self.path);
    }
}

/// What a listener gives.
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    /// Listens on a TCP address; with `reuse_port` several processes can share it. Needs the runtime's context.
    pub fn tcp(address: SocketAddr, reuse_port: bool) -> io::Result<Listener> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // Without it a restart within minutes finds the port taken by connections that are long closed.
        socket.set_reuseaddr(true)?;
        if reuse_port {
            socket.set_reuseport(true)?;
        }
        socket.bind(address)?;
        Ok(Listener::Tcp(socket.listen(BACKLOG)?))
    }

    /// Listens on a Unix socket at `path`. A socket there that nobody listens at any more is replaced. Needs the runtime's
    /// context.
    pub fn unix(path: &Path) -> io::Result<Listener> {
        let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
        if is_socket && net::UnixStream::connect(path).is_err() {
            fs::remove_file(path)?;
        }
        Ok(Listener::Unix(OwnedSocket { listener: UnixListener::bind(path)?, path: path.to_owned() }))
    }

    /// The TCP address, which tells the port where 0 was asked for; `None` for a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(_) => None,
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Socket::Tcp(stream))
            }
            Listener::Unix(socket) => Ok(Socket::Unix(socket.listener.accept().await?.0)),
        }
    }
}
