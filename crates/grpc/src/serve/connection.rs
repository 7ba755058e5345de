//! How is one connection served?

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nerite_compress::Lane;
use nerite_listen::{
    ConnectionMonitor, LocalStream, MemoryLimitedStream, Open, Served, Timed, Tls, monitor_connection, until_shed,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use super::ServerState;
use super::connection_calls::ConnectionCalls;
use super::cork::{Held, cork};
use super::local::Local;
use super::unread_bytes::Metered;
use crate::dispatch::dispatch;
use crate::execute::{ExecutorState, FirstPollInPlace};
use crate::limits;
use crate::options::Options;
use crate::reused_future::ReusedFuture;

/// Negotiates TLS, then serves the connection.
pub(super) async fn serve_secured(
    socket: TcpStream,
    tls: Tls,
    server: Arc<ServerState>,
    mut monitor: ConnectionMonitor,
    open: Open,
) {
    if let Some(socket) = tls.handshake(socket, &mut monitor, server.options.handshake_max).await {
        serve(socket, server, monitor, open).await;
    }
}

/// Serves a connection over TCP.
pub(super) async fn serve_tcp(socket: TcpStream, server: Arc<ServerState>, monitor: ConnectionMonitor, open: Open) {
    let socket = Timed::new(socket, Arc::clone(monitor.progress()));
    serve(socket, server, monitor, open).await;
}

/// Serves a connection over a Unix socket.
pub(super) async fn serve_local(socket: LocalStream, server: Arc<ServerState>, monitor: ConnectionMonitor, open: Open) {
    let socket = Timed::new(socket, Arc::clone(monitor.progress()));
    serve(Local::new(socket), server, monitor, open).await;
}

/// Serves a connection until it ends. `open` is held until then.
pub(super) async fn serve<S>(socket: S, server: Arc<ServerState>, mut monitor: ConnectionMonitor, open: Open)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection_calls = ConnectionCalls::new(Arc::clone(monitor.progress()));
    let shared = ExecutorState {
        connection_calls: Arc::clone(&connection_calls),
        times: server.rules.times,
        peers: Arc::clone(&server.rules.peers),
        peer: server.api.peer().clone(),
        flow: server.api.flow().clone(),
    };
    let protocol = protocol(&server.options, FirstPollInPlace::new(shared));
    let (age_max, age_grace) = (server.options.connection_age_max, server.options.connection_age_grace);
    let lane = Lane::new();
    let account = server.api.account().clone();
    let socket = Metered::new(MemoryLimitedStream::new(socket, &account), &server.unread, &connection_calls);
    let calls = service_fn({
        let connection_calls = Arc::clone(&connection_calls);
        move |request| {
            let call = connection_calls.begin_call(&server.calls);
            // The future is in a box, because the HTTP/2 library moves it several times.
            ReusedFuture::new(dispatch(Arc::clone(&server), lane.clone(), call, request))
        }
    });
    let (socket, held) = cork(socket);
    let connection = pin!(protocol.serve_connection(TokioIo::new(socket), calls));
    let mut served = Grpc {
        connection,
        shut_down: |connection| connection.graceful_shutdown(),
        ended: None,
        held,
        connection_calls,
        leaving: false,
        age: age_max.map(|age| Box::pin(sleep(age))),
        grace: age_grace,
        is_old: false,
        is_draining: false,
    };
    let conversed = monitor_connection(&mut served, &mut monitor, Duration::from_millis(limits::LEAVE_MS_MAX));
    until_shed(&account, Duration::from_millis(limits::SHED_LEAVE_MS_MAX), conversed).await;
    drop(open);
}

/// An HTTP/2 connection. After each poll it sends the bytes that were collected.
struct Grpc<'c, C> {
    connection: Pin<&'c mut C>,
    shut_down: fn(Pin<&mut C>),
    ended: Option<hyper::Result<()>>,
    held: Held,
    connection_calls: Arc<ConnectionCalls>,
    leaving: bool,
    /// The timer for the connection's age. It fires when the connection is too old, and again after the grace period.
    age: Option<Pin<Box<Sleep>>>,
    grace: Option<Duration>,
    is_old: bool,
    /// Whether the connection is to end after a call, and the graceful shutdown has not begun.
    is_draining: bool,
}

impl<C: Future<Output = hyper::Result<()>>> Served for Grpc<'_, C> {
    fn poll_serve(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.connection_calls.begin_poll();
        if self.poll_age(cx).is_ready() {
            return Poll::Ready(());
        }
        self.poll_connection(cx);
        if self.begins_to_leave() {
            self.poll_connection(cx);
        }
        let sent = match self.held.poll_drain(cx) {
            Poll::Ready(sent) if sent.is_err() || self.ended.is_some() => sent,
            // All bytes so far are sent or wait for the socket. The connection continues.
            _ => {
                self.connection_calls.note(self.leaving);
                return Poll::Pending;
            }
        };
        if let Some(Err(fault)) = &self.ended {
            log::debug!("a gRPC connection ended: {fault}");
        }
        if let Err(fault) = sent {
            log::debug!("a gRPC connection ended with answers unsent: {fault}");
        }
        Poll::Ready(())
    }

    fn drain(&mut self) {
        self.is_draining = !self.leaving && !self.is_old;
    }

    fn shut_down(&mut self) {
        self.leaving = true;
        if self.ended.is_none() {
            (self.shut_down)(self.connection.as_mut());
        }
    }
}

impl<C: Future<Output = hyper::Result<()>>> Grpc<'_, C> {
    fn poll_connection(&mut self, cx: &mut Context<'_>) {
        if self.ended.is_none()
            && let Poll::Ready(outcome) = self.held.polling(|| self.connection.as_mut().poll(cx))
        {
            self.ended = Some(outcome);
        }
    }

    /// Begins the graceful shutdown of a connection that drains, once a call has begun on it. Before the first call, a client that reconnects at each
    /// GOAWAY would never get to it. Returns whether it began.
    fn begins_to_leave(&mut self) -> bool {
        if !self.is_draining || !self.connection_calls.has_begun() {
            return false;
        }
        self.is_draining = false;
        if self.ended.is_none() {
            (self.shut_down)(self.connection.as_mut());
        }
        true
    }

    /// Begins the graceful shutdown when the connection is too old. Ready when the grace period after that is over.
    fn poll_age(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(age) = &mut self.age {
            if age.as_mut().poll(cx).is_pending() {
                break;
            }
            if self.is_old || self.ended.is_some() {
                return Poll::Ready(());
            }
            self.is_old = true;
            (self.shut_down)(self.connection.as_mut());
            match self.grace {
                Some(grace) => age.as_mut().reset(Instant::now() + grace),
                None => self.age = None,
            }
        }
        Poll::Pending
    }
}

fn protocol(options: &Options, executor: FirstPollInPlace) -> http2::Builder<FirstPollInPlace> {
    let mut protocol = http2::Builder::new(executor);
    protocol
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .initial_stream_window_size(limits::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
        .max_frame_size(limits::FRAME_BYTES_MAX)
        .max_concurrent_streams(limits::CALLS_PER_CONNECTION_MAX)
        .max_pending_accept_reset_streams(limits::CANCELLED_UNSEEN_MAX)
        .max_header_list_size(limits::METADATA_BYTES_MAX)
        .keep_alive_interval(options.keepalive_time)
        .keep_alive_timeout(options.keepalive_timeout);
    protocol
}
