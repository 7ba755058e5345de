//! How is a connection to a server made, and over which kind of socket?

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::endpoint::Endpoint;
use crate::handshake::{ALERT, after_handshake, in_handshake, is_closed};
use crate::{ClientOptions, Error, HandshakeFault, Tls};

/// Makes connections to one server.
#[derive(Clone)]
pub(crate) struct Connector(Arc<Shared>);

struct Shared {
    endpoint: Endpoint,
    connect_max: Option<Duration>,
    request_max: Option<Duration>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// Why a connection ended, if that was a fault of TLS and the server has not answered since.
    last_fault: Mutex<Option<HandshakeFault>>,
}

impl Connector {
    /// Reads the address and the options. Nothing is connected yet. `protocol` is the name of the application protocol in TLS (ALPN).
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
        let (connect_max, request_max, last_fault) = (*connect_max, *request_max, Mutex::default());
        Ok(Connector(Arc::new(Shared { endpoint, connect_max, request_max, tls, last_fault })))
    }

    /// The server's address.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    /// A new connection.
    pub(crate) async fn connect(&self) -> io::Result<Stream> {
        let open = Box::pin(async {
            let socket = self.0.open().await?;
            Ok(Stream { socket, has_answered: false, connector: self.clone() })
        });
        let Some(limit) = self.0.connect_max else { return open.await };
        let late = || {
            let text = format!("no connection within {} ms; ClientOptions::connect_max allows more", limit.as_millis());
            io::Error::new(io::ErrorKind::TimedOut, text)
        };
        tokio::time::timeout(limit, open).await.unwrap_or_else(|_| Err(late()))
    }

    /// Why a connection ended, if the client and the server did not agree on TLS and no connection was answered since.
    pub(crate) fn last_fault(&self) -> Option<HandshakeFault> {
        self.0.last_fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a call, for at most the time that the options allow for one call.
    pub(crate) async fn within_limit<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        // The future is boxed, because it is large, and the future of each caller would contain it several times.
        let call = Box::pin(call);
        let Some(limit) = self.0.request_max else { return call.await };
        let late = || Error::TimedOut { endpoint: self.0.endpoint.to_string(), limit_ms: limit.as_millis() };
        tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(late()))
    }
}

impl Shared {
    fn note(&self, fault: Option<HandshakeFault>) {
        *self.last_fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    async fn open(&self) -> io::Result<Socket> {
        let authority = match &self.endpoint {
            Endpoint::Unix { path } => return Ok(Socket::Unix(UnixStream::connect(path).await?)),
            Endpoint::Tcp { authority, .. } => authority,
        };
        let stream = TcpStream::connect(authority).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => Ok(Socket::Tcp(stream)),
            Some((tls, name)) => {
                let secured = tls.connect(name.clone(), stream).await.map_err(in_handshake)?;
                Ok(Socket::Tls(Box::new(secured)))
            }
        }
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.endpoint)
    }
}

/// A connection.
pub(crate) struct Stream {
    socket: Socket,
    /// Whether the server has sent anything.
    has_answered: bool,
    connector: Connector,
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Makes the same call on each kind of connection.
macro_rules! each {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream {
            Socket::Tcp($inner) => $call,
            Socket::Unix($inner) => $call,
            Socket::Tls($inner) => $call,
        }
    };
}

impl Stream {
    fn failed(&self, error: io::Error) -> io::Error {
        if let Some(fault) = HandshakeFault::in_chain(&error) {
            self.connector.0.note(Some(fault));
        }
        error
    }

    /// The result of a write, or the reason why nothing can be written: a server may send it in an alert before it closes the connection. What a closed
    /// connection still holds is readable, so this waits until it is read. These bytes are lost; the libraries of HTTP read nothing after a failed write.
    fn written<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let error = match ready!(result) {
            Err(error) if !self.has_answered && is_closed(&error) => error,
            result => return Poll::Ready(result),
        };
        let mut bytes = [0; ALERT.len()];
        match ready!(Pin::new(self).poll_read(cx, &mut ReadBuf::new(&mut bytes))) {
            Err(reason) if HandshakeFault::in_chain(&reason).is_some() => Poll::Ready(Err(reason)),
            Ok(()) | Err(_) => Poll::Ready(Err(error)),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (stream, before) = (self.get_mut(), into.filled().len());
        let read = ready!(each!(&mut stream.socket, socket => Pin::new(socket).poll_read(cx, into)));
        if let Err(error) = read {
            return Poll::Ready(Err(stream.failed(after_handshake(error))));
        }
        if stream.has_answered {
            return Poll::Ready(Ok(()));
        }
        let first = into.filled().get(before..).unwrap_or_default();
        if first.is_empty() {
            return Poll::Ready(Ok(()));
        }
        stream.has_answered = true;
        if matches!(stream.socket, Socket::Tcp(_)) && first.starts_with(&ALERT) {
            return Poll::Ready(Err(stream.failed(HandshakeFault::PortHasTls.into())));
        }
        stream.connector.0.note(None);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        let written = each!(&mut stream.socket, socket => Pin::new(socket).poll_write(cx, bytes));
        stream.written(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        let written = each!(&mut stream.socket, socket => Pin::new(socket).poll_write_vectored(cx, pieces));
        stream.written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        each!(&self.socket, socket => socket.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        let flushed = each!(&mut stream.socket, socket => Pin::new(socket).poll_flush(cx));
        stream.written(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(&mut self.get_mut().socket, socket => Pin::new(socket).poll_shutdown(cx))
    }
}
