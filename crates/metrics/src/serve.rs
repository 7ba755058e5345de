//! How are metrics connections accepted, served and closed?

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nerite_api::{Api, aside};
use nerite_listen::{
    ACCEPT_PAUSE, Awaited, Connection, FutureConnection, Listener, Overseer, Peers, Rules, Stream, Timed, oversee,
};
use nerite_watchdog::{FrontEnd, fair, watched};
use nerite_wire::prometheus::{ConnectionMetrics, MetricsReport, write_metrics};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use crate::answer::{answer, failed, wants_page};

/// The metrics service while it runs.
#[derive(Clone, Debug)]
pub struct Handle {
    /// Set to true once. Every task holds a receiver, so that the sender is notified when the last task has ended.
    stop: Arc<watch::Sender<bool>>,
}

impl Handle {
    /// Stops listening. Connections without a complete request are closed now, and the others after their answer. The future resolves when all are
    /// closed.
    pub fn stop(&self) -> impl Future<Output = ()> + Send + use<> {
        let stop = Arc::clone(&self.stop);
        stop.send_replace(true);
        async move { stop.closed().await }
    }
}

/// Serves the connections of `listener`. Must be called inside an async runtime with I/O and time.
pub fn serve(api: Api, rules: Rules, listener: Listener) -> Handle {
    let stop = Arc::new(watch::Sender::new(false));
    tokio::spawn(watched(FrontEnd::Metrics, accept(api, rules, listener, stop.subscribe())));
    Handle { stop }
}

async fn accept(api: Api, rules: Rules, listener: Listener, stop: watch::Receiver<bool>) {
    let mut stopped = stop.clone();
    loop {
        let outcome = tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => return,
            outcome = listener.accept_among(&rules.peers) => outcome,
        };
        match outcome {
            Ok(connection) => begin(connection, &api, &rules, &stop),
            Err(error) => {
                log::warn!("cannot accept a metrics connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn begin(Connection { stream, peer }: Connection, api: &Api, rules: &Rules, stop: &watch::Receiver<bool>) {
    let permit = match rules.peers.admit(&peer) {
        Ok(permit) => permit,
        Err(full) => {
            return stream.turn_away(
                format!("HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\r\n{full}\n").as_bytes(),
            );
        }
    };
    let overseer = Overseer::new(permit, rules.times, stop.clone());
    let (api, peers) = (api.for_peer(peer), Arc::clone(&rules.peers));
    let flow = api.flow().clone();
    match stream {
        Stream::Tcp(stream) => {
            drop(tokio::spawn(fair(FrontEnd::Metrics, &flow, serve_connection(api, peers, stream, overseer))));
        }
        Stream::Unix(stream) => {
            drop(tokio::spawn(fair(FrontEnd::Metrics, &flow, serve_connection(api, peers, stream, overseer))));
        }
    }
}

async fn serve_connection(
    api: Api,
    peers: Arc<Peers>,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    mut overseer: Overseer,
) {
    let progress = Arc::clone(overseer.progress());
    let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
        progress.begin_request();
        let wants_page = wants_page(request.method(), request.uri().path());
        let (progress, api, peers) = (Arc::clone(&progress), api.clone(), Arc::clone(&peers));
        async move {
            let text = if wants_page { page(api, peers).await } else { Ok(String::new()) };
            let response = match text {
                Ok(text) => answer(request.method(), text),
                Err(why) => failed(why),
            };
            // From here on the server waits for the client: to read the answer, and then for its next request.
            progress.wait_for(Awaited::Request);
            Ok::<_, Infallible>(response)
        }
    });
    let stream = TokioIo::new(Timed::new(stream, Arc::clone(&progress)));
    let connection = http1::Builder::new().serve_connection(stream, service);
    let mut served =
        FutureConnection { connection: pin!(connection), shut_down: |connection| connection.graceful_shutdown() };
    oversee(&mut served, &mut overseer, Duration::ZERO).await;
}

/// Models may have made so many metrics that a page of them would keep others waiting.
async fn page(api: Api, peers: Arc<Peers>) -> Result<String, String> {
    if api.has_long_metrics() {
        return aside(move || write_metrics(&report(&api, &peers))).await.map_err(|status| status.message);
    }
    Ok(write_metrics(&report(&api, &peers)))
}

fn report(api: &Api, peers: &Peers) -> MetricsReport {
    let counts = peers.counts();
    let connections =
        ConnectionMetrics { open: counts.open, peers: counts.peers, refused: counts.refused, ended: counts.ended };
    MetricsReport { connections, ..api.metrics_report() }
}
