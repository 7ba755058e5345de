//! How is one connection served?

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nerite_compress::Lane;
use nerite_listen::Wary;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::Front;
use super::cork::{Held, cork};
use crate::dispatch::dispatch;
use crate::execute::FirstPollInPlace;
use crate::limits;
use crate::options::Options;
use crate::tls::Tls;

/// Agrees on a key, then serves the connection.
pub(super) async fn serve_secured(socket: TcpStream, tls: Tls, front: Arc<Front>, open: watch::Receiver<()>) {
    let agreed = tokio::select! {
        biased;
        agreed = tls.0.accept(socket) => agreed,
        () = front.stopped() => return,
        () = tokio::time::sleep(Duration::from_millis(limits::HANDSHAKE_MS_MAX)) => return,
    };
    match agreed {
        Ok(socket) => serve(socket, front, open).await,
        Err(fault) => log::debug!("a gRPC client and we do not agree on TLS: {fault}"),
    }
}

/// Serves a connection until it ends; `open` is held that long.
pub(super) async fn serve<S>(socket: S, front: Arc<Front>, open: watch::Receiver<()>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stop = front.stopped();
    let (age_max, age_grace) = (front.options.connection_age_max, front.options.connection_age_grace);
    let protocol = protocol(&front.options);
    let called = Arc::new(AtomicBool::new(false));
    let lane = Lane::new();
    let calls = service_fn({
        let called = Arc::clone(&called);
        move |request| {
            called.store(true, Ordering::Relaxed);
            dispatch(Arc::clone(&front), lane.clone(), request)
        }
    });
    let (socket, held) = cork(Wary::new(socket));
    let mut connection = pin!(protocol.serve_connection(TokioIo::new(socket), calls));
    tokio::select! {
        biased;
        () = converse(connection.as_mut(), &held) => {}
        () = stop => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                () = converse(connection, &held) => {}
                () = uncalled(&called) => {}
            }
        }
        () = sleep_or_never(age_max) => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                () = converse(connection, &held) => {}
                () = sleep_or_never(age_grace) => {}
            }
        }
    }
    drop(open);
}

/// Lets the connection work, and out what it wrote, until it has ended.
async fn converse<C, S>(mut connection: Pin<&mut C>, held: &Held<S>)
where
    C: Future<Output = hyper::Result<()>>,
    S: AsyncWrite + Unpin,
{
    let mut ended = None;
    let sent = poll_fn(|cx| {
        if ended.is_none()
            && let Poll::Ready(outcome) = connection.as_mut().poll(cx)
        {
            ended = Some(outcome);
        }
        match held.poll_drain(cx) {
            // Out is what was written so far; there is more to come.
            Poll::Ready(Ok(())) if ended.is_none() => Poll::Pending,
            drained => drained,
        }
    })
    .await;
    if let Some(Err(fault)) = ended {
        log::debug!("a gRPC connection ended: {fault}");
    }
    if let Err(fault) = sent {
        log::debug!("a gRPC connection ended with answers unsent: {fault}");
    }
}

/// Ready when a connection has had its time to take leave and never asked for anything, so that nothing is owed to it: its client
/// may be no client at all, or never say what the protocol wants of it.
async fn uncalled(called: &AtomicBool) {
    tokio::time::sleep(Duration::from_millis(limits::LEAVE_MS_MAX)).await;
    if called.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
}

async fn sleep_or_never(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

fn protocol(options: &Options) -> http2::Builder<FirstPollInPlace> {
    let mut protocol = http2::Builder::new(FirstPollInPlace);
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
