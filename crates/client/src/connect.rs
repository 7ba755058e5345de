//! How is a connection to a server made, and over which kind of socket?

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::endpoint::Endpoint;
use crate::{ClientOptions, Error, Tls};

/// Connects to one server, as often as it is asked to.
#[derive(Clone)]
pub(crate) struct Connector(Arc<Shared>);

struct Shared {
    endpoint: Endpoint,
    connect_max: Option<Duration>,
    request_max: Option<Duration>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Connector {
    /// Connects to the server at this address. `protocol` is the name of the application protocol in TLS (ALPN).
    pub(crate) fn new(address: &str, options: &ClientOptions, protocol: &[u8]) -> Result<Connector, Error> {
        let endpoint = Endpoint::parse(address)?;
        let ClientOptions { connect_max, request_max, tls, .. } = options;
        let tls = match (endpoint.secure_host(), tls) {
            (Some(host), Some(tls)) => Some(tls.connector(host, protocol)?),
            (Some(host), None) => Some(Tls::with_system_roots()?.connector(host, protocol)?),
            (None, None) => None,
            (None, Some(_)) => {
                let reason = "certificates were given, which only addresses of https:// have a use for".to_owned();
                return Err(Error::Endpoint { endpoint: address.to_owned(), reason });
            }
        };
        Ok(Connector(Arc::new(Shared { endpoint, connect_max: *connect_max, request_max: *request_max, tls })))
    }

    /// Where it connects to.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    /// A new connection.
    pub(crate) async fn connect(&self) -> io::Result<Stream> {
        let open = Box::pin(self.0.open());
        let Some(limit) = self.0.connect_max else { return open.await };
        let late = || {
            let text = format!("no connection within {} ms; ClientOptions::connect_max allows more", limit.as_millis());
            io::Error::new(io::ErrorKind::TimedOut, text)
        };
        tokio::time::timeout(limit, open).await.unwrap_or_else(|_| Err(late()))
    }

    /// Waits for a call, within the limit of one.
    pub(crate) async fn within_limit<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        // Boxed, because a call's future is large, and each caller would contain it several times.
        let call = Box::pin(call);
        let Some(limit) = self.0.request_max else { return call.await };
        let late = || Error::TimedOut { endpoint: self.0.endpoint.to_string(), limit_ms: limit.as_millis() };
        tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(late()))
    }
}

impl Shared {
    async fn open(&self) -> io::Result<Stream> {
        let authority = match &self.endpoint {
            Endpoint::Unix { path } => return Ok(Stream::Unix(UnixStream::connect(path).await?)),
            Endpoint::Tcp { authority, .. } => authority,
        };
        let stream = TcpStream::connect(authority).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => Ok(Stream::Tcp(stream)),
            Some((tls, name)) => Ok(Stream::Tls(Box::new(tls.connect(name.clone(), stream).await?))),
        }
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.endpoint)
    }
}

/// A connection.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// The same call of whichever it is.
macro_rules! each {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream {
            Stream::Tcp($inner) => $call,
            Stream::Unix($inner) => $call,
            Stream::Tls($inner) => $call,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_read(cx, into))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_write_vectored(cx, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        each!(self, stream => stream.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(cx))
    }
}
