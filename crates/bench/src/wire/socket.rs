//! How is a server reached with the least effort?

use std::io::{IoSlice, Read, Result, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};

/// Where a server listens, and how it is reached there.
#[derive(Clone, Debug)]
pub(crate) enum Endpoint {
    /// A host with a port.
    Tcp {
        /// `host:port`.
        authority: String,
        /// The configuration of TLS, and the name in the server's certificate.
        tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl Endpoint {
    /// Reads `host:port` or `unix:path`, without TLS.
    pub(crate) fn plain(address: &str) -> Endpoint {
        match address.strip_prefix("unix://").or_else(|| address.strip_prefix("unix:")) {
            Some(path) => Endpoint::Unix(path.into()),
            None => Endpoint::Tcp { authority: address.to_owned(), tls: None },
        }
    }

    /// The value of the header `Host`.
    pub(crate) fn authority(&self) -> &str {
        match self {
            Endpoint::Tcp { authority, .. } => authority,
            Endpoint::Unix(_) => "localhost",
        }
    }

    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Endpoint::Tcp { tls: Some(_), .. })
    }
}

/// A blocking connection.
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Socket {
    pub(crate) fn connect(endpoint: &Endpoint) -> Result<Socket> {
        match endpoint {
            Endpoint::Unix(path) => UnixStream::connect(path).map(Socket::Unix),
            Endpoint::Tcp { authority, tls } => {
                let stream = TcpStream::connect(authority.as_str())?;
                stream.set_nodelay(true)?;
                let Some((config, name)) = tls else { return Ok(Socket::Tcp(stream)) };
                let connection = ClientConnection::new(Arc::clone(config), name.clone());
                let connection = connection.map_err(std::io::Error::other)?;
                Ok(Socket::Tls(Box::new(StreamOwned::new(connection, stream))))
            }
        }
    }
}

impl Read for Socket {
    fn read(&mut self, to: &mut [u8]) -> Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(to),
            Socket::Unix(stream) => stream.read(to),
            Socket::Tls(stream) => stream.read(to),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, from: &[u8]) -> Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(from),
            Socket::Unix(stream) => stream.write(from),
            Socket::Tls(stream) => stream.write(from),
        }
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write_vectored(from),
            Socket::Unix(stream) => stream.write_vectored(from),
            Socket::Tls(stream) => stream.write_vectored(from),
        }
    }

    fn flush(&mut self) -> Result<()> {
        match self {
            Socket::Tcp(_) | Socket::Unix(_) => Ok(()),
            Socket::Tls(stream) => stream.flush(),
        }
    }
}
