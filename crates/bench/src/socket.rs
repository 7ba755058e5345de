//! How is a server reached with the least effort?

use std::io::{IoSlice, Read, Result, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

/// A blocking connection.
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects to `host:port` or `unix:path`.
    pub(crate) fn connect(address: &str) -> Result<Socket> {
        if let Some(path) = address.strip_prefix("unix:") {
            return UnixStream::connect(path).map(Socket::Unix);
        }
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Socket::Tcp(stream))
    }
}

impl Read for Socket {
    fn read(&mut self, to: &mut [u8]) -> Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(to),
            Socket::Unix(stream) => stream.read(to),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, from: &[u8]) -> Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(from),
            Socket::Unix(stream) => stream.write(from),
        }
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write_vectored(from),
            Socket::Unix(stream) => stream.write_vectored(from),
        }
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
