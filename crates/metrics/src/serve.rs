//! How does a scrape come and go?

use std::convert::Infallible;
use std::io;
use std::net::ToSocketAddrs;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nerite_api::Api;
use nerite_wire::prometheus::write_metrics;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use crate::answer::answer;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 128;
/// Pause after the system refused a connection for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The metrics service while it runs.
#[derive(Clone, Debug)]
pub struct Handle {
    /// Set once. Every task holds a receiver, so that the sender knows when the last has gone.
    stop: Arc<watch::Sender<bool>>,
}

impl Handle {
    /// Stops listening and closes idle connections now, busy ones after their answer. The future is done when all are
    /// closed.
    pub fn stop(&self) -> impl Future<Output = ()> + Send + use<> {
        let stop = Arc::clone(&self.stop);
        stop.send_replace(true);
        async move { stop.closed().await }
    }
}

/// Listens at a port; 0 for any that is free. A port that is taken is `AddrInUse`. To be called inside the async runtime.
pub fn bind(address: &str, port: u16) -> io::Result<TcpListener> {
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    let at = (bare, port).to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let socket = if at.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Without it a restart within minutes finds the port taken by connections that are long closed.
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(BACKLOG)
}

/// Serves what comes in at `listener`. To be called inside an async runtime with I/O and time.
pub fn serve(api: Api, listener: TcpListener) -> Handle {
    let stop = Arc::new(watch::Sender::new(false));
    tokio::spawn(accept(api, listener, stop.subscribe()));
    Handle { stop }
}

async fn accept(api: Api, listener: TcpListener, stop: watch::Receiver<bool>) {
    let mut stopped = stop.clone();
    loop {
        let outcome = tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => return,
            outcome = listener.accept() => outcome,
        };
        match outcome {
            Ok((stream, _)) => drop(tokio::spawn(converse(api.clone(), stream, stop.clone()))),
            Err(error) => {
                log::warn!("cannot accept a metrics connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn converse(api: Api, stream: TcpStream, mut stop: watch::Receiver<bool>) {
    let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
        let page = || write_metrics(&api.metrics_report());
        let response = answer(request.method(), request.uri().path(), page);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut connection = pin!(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    // How a connection broke is the client's affair.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = stop.wait_for(|stop| *stop) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}
