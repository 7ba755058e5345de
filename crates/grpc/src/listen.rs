//! Where do connections come from?

use std::net::SocketAddr;
use std::os::unix::{fs::FileTypeExt, net};
use std::path::{Path, PathBuf};
use std::{fs, io};

use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

use crate::limits::BACKLOG;
use crate::tls::Tls;

/// A place where clients can connect.
#[derive(Debug)]
pub struct Listener {
    place: Place,
    tls: Option<Tls>,
}

#[derive(Debug)]
enum Place {
    Tcp(TcpListener),
    Unix(OwnedSocket),
}

/// A Unix socket that takes its file with it.
#[derive(Debug)]
struct OwnedSocket {
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
    Secured(TcpStream, Tls),
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
        Ok(Listener { place: Place::Tcp(socket.listen(BACKLOG)?), tls: None })
    }

    /// Listens on a Unix socket at `path`. A socket there that nobody listens at any more is replaced. Needs the runtime's
    /// context.
    pub fn unix(path: &Path) -> io::Result<Listener> {
        let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
        if is_socket && net::UnixStream::connect(path).is_err() {
            fs::remove_file(path)?;
        }
        let socket = OwnedSocket { listener: UnixListener::bind(path)?, path: path.to_owned() };
        Ok(Listener { place: Place::Unix(socket), tls: None })
    }

    /// The same port behind TLS. A Unix socket stays as it is: who may connect there is the file system's affair.
    pub fn secured(self, tls: Tls) -> Listener {
        Listener { tls: Some(tls), ..self }
    }

    /// The TCP address, which tells the port where 0 was asked for; `None` for a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.place {
            Place::Tcp(listener) => listener.local_addr().ok(),
            Place::Unix(_) => None,
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<Socket> {
        match &self.place {
            Place::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Refused only for a connection that is gone already, which shows soon enough.
                let _ = stream.set_nodelay(true);
                Ok(match &self.tls {
                    Some(tls) => Socket::Secured(stream, tls.clone()),
                    None => Socket::Tcp(stream),
                })
            }
            Place::Unix(socket) => Ok(Socket::Unix(socket.listener.accept().await?.0)),
        }
    }
}
