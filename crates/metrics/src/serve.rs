//! How does a scrape come and go?

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nerite_api::Api;
use nerite_listen::{ACCEPT_PAUSE, Listener, Stream};
use nerite_watchdog::{FrontEnd, watched};
use nerite_wire::prometheus::write_metrics;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use crate::answer::answer;

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

/// Serves what comes in at `listener`. To be called inside an async runtime with I/O and time.
pub fn serve(api: Api, listener: Listener) -> Handle {
    let stop = Arc::new(watch::Sender::new(false));
    tokio::spawn(watched(FrontEnd::Metrics, accept(api, listener, stop.subscribe())));
    Handle { stop }
}

async fn accept(api: Api, listener: Listener, stop: watch::Receiver<bool>) {
    let mut stopped = stop.clone();
    loop {
        let outcome = tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => return,
            outcome = listener.accept() => outcome,
        };
        match outcome {
            Ok(connection) => {
                let api = api.for_peer(connection.peer);
                match connection.stream {
                    Stream::Tcp(stream) => {
                        drop(tokio::spawn(watched(FrontEnd::Metrics, converse(api, stream, stop.clone()))));
                    }
                    Stream::Unix(stream) => {
                        drop(tokio::spawn(watched(FrontEnd::Metrics, converse(api, stream, stop.clone()))));
                    }
                }
            }
            Err(error) => {
                log::warn!("cannot accept a metrics connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn converse(api: Api, stream: impl AsyncRead + AsyncWrite + Unpin, mut stop: watch::Receiver<bool>) {
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
