//! How are metrics connections accepted, served and closed?

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http::header::{AUTHORIZATION, HeaderValue};
use http_body_util::BodyExt;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nerite_api::{Api, aside};
use nerite_listen::{
    Awaited, Connection, FutureConnection, HANDSHAKE_MAX, Listener, MemoryLimitedStream, Open, Overseer, Peers,
    Progress, Rules, Service, StopSignal, Stream, Timed, Tls, oversee, until_shed,
};
use nerite_watchdog::{FrontEnd, fair};
use nerite_wire::prometheus::{ConnectionMetrics, MetricsReport, write_metrics};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::answer::{answer, failed, forbidden, wants_page};
use crate::beside::{Beside, Body};

/// How long a connection that was ended because of its memory may take to tell its client why.
const LEAVE_MAX: Duration = Duration::from_secs(5);

/// The metrics service while it runs.
#[derive(Clone, Debug)]
pub struct Handle(Service);

impl Handle {
    /// Its listeners and connections.
    pub fn service(&self) -> Service {
        self.0.clone()
    }

    /// Stops listening. Connections without a complete request are closed now, and the others after their answer. The future resolves when all are
    /// closed.
    pub fn stop(&self) -> impl Future<Output = ()> + Send + use<> {
        self.0.stop()
    }
}

/// How the port is secured.
#[derive(Clone, Debug)]
pub struct Options {
    /// The certificates of TCP connections; `None` for plain HTTP.
    pub tls: Option<Tls>,
    /// Time that a client has for a TLS handshake; `None` for no limit.
    pub handshake_max: Option<Duration>,
}

impl Default for Options {
    fn default() -> Options {
        Options { tls: None, handshake_max: Some(HANDSHAKE_MAX) }
    }
}

/// The state that all connections share.
#[derive(Clone)]
struct Shared {
    api: Api,
    peers: Arc<Peers>,
    options: Options,
    beside: Option<Arc<dyn Beside>>,
}

/// Serves the connections of `listener`. `beside` answers what is not asked of the metrics. Must be called inside an async runtime with I/O and time.
/// An error means that there is no thread that accepts.
pub fn serve(
    api: Api,
    options: Options,
    rules: Rules,
    listener: Listener,
    beside: Option<Arc<dyn Beside>>,
) -> io::Result<Handle> {
    let service = Service::default();
    let shared = Shared { api, peers: Arc::clone(&rules.peers), options, beside };
    let (peers, stop) = (Arc::clone(&rules.peers), service.stop_signal());
    let begin = move |connection, open| begin(connection, open, &shared, &rules, &stop);
    service.accept("metrics", Arc::new(listener), Some(peers), begin)?;
    Ok(Handle(service))
}

fn begin(connection: Connection, open: Open, shared: &Shared, rules: &Rules, stop: &StopSignal) {
    let tls = shared.options.tls.clone().filter(|_| connection.is_tcp());
    let permit = match rules.peers.admit(&connection.peer) {
        Ok(permit) => permit,
        // A client that expects TLS cannot read a plain answer.
        Err(_) if tls.is_some() => return connection.turn_away(&[]),
        Err(full) => {
            return connection.turn_away(
                format!("HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\r\n{full}\n").as_bytes(),
            );
        }
    };
    let overseer = Overseer::new(permit, rules.times, stop.clone());
    let shared = Shared { api: shared.api.for_peer(connection.peer.clone()), ..shared.clone() };
    let flow = shared.api.flow().clone();
    match (connection.into_stream(), tls) {
        (Ok(Stream::Tcp(stream)), None) => {
            drop(tokio::spawn(fair(FrontEnd::Metrics, &flow, serve_connection(shared, stream, overseer, open))));
        }
        (Ok(Stream::Tcp(stream)), Some(tls)) => {
            drop(tokio::spawn(fair(FrontEnd::Metrics, &flow, serve_secured(shared, stream, tls, overseer, open))));
        }
        (Ok(Stream::Unix(stream)), _) => {
            drop(tokio::spawn(fair(FrontEnd::Metrics, &flow, serve_connection(shared, stream, overseer, open))));
        }
        (Err(error), _) => log::warn!("a metrics connection was closed at once: {error}"),
    }
}

/// Negotiates TLS, then serves the connection.
async fn serve_secured(shared: Shared, stream: TcpStream, tls: Tls, mut overseer: Overseer, open: Open) {
    if let Some(stream) = tls.handshake(stream, &mut overseer, shared.options.handshake_max).await {
        serve_timed(shared, stream, overseer, open).await;
    }
}

/// Serves a plain connection.
async fn serve_connection(shared: Shared, stream: impl AsyncRead + AsyncWrite + Unpin, overseer: Overseer, open: Open) {
    let stream = Timed::new(stream, Arc::clone(overseer.progress()));
    serve_timed(shared, stream, overseer, open).await;
}

/// Serves a connection whose traffic is noted in the overseer's [`Progress`].
async fn serve_timed(shared: Shared, stream: impl AsyncRead + AsyncWrite + Unpin, mut overseer: Overseer, open: Open) {
    let progress = Arc::clone(overseer.progress());
    let stream = MemoryLimitedStream::new(stream, shared.api.account());
    let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
        progress.begin_request();
        let (shared, progress) = (shared.clone(), Arc::clone(&progress));
        async move { Ok::<_, Infallible>(respond(shared, request, progress).await) }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let mut served =
        FutureConnection { connection: pin!(connection), shut_down: |connection| connection.graceful_shutdown() };
    let served_until_shed = oversee(&mut served, &mut overseer, Duration::ZERO);
    until_shed(shared.api.account(), LEAVE_MAX, served_until_shed).await;
    drop(open);
}

async fn respond(
    shared: Shared,
    mut request: hyper::Request<hyper::body::Incoming>,
    progress: Arc<Progress>,
) -> Response<Body> {
    let Shared { api, peers, beside, .. } = shared;
    if let Some(beside) = beside {
        match beside.answer(&api, request, &progress) {
            Ok(answer) => return answer.await,
            Err(own) => request = *own,
        }
    }
    let wants_page = wants_page(request.method(), request.uri().path());
    if wants_page
        && let Err(refused) = api.allow_metrics(request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes))
    {
        progress.wait_for(Awaited::Request);
        return forbidden(&refused).map(BodyExt::boxed_unsync);
    }
    let text = if wants_page { page(api, peers).await } else { Ok(String::new()) };
    let response = match text {
        Ok(text) => answer(request.method(), text),
        Err(why) => failed(why),
    };
    // From here on the server waits for the client: to read the answer, and then for its next request.
    progress.wait_for(Awaited::Request);
    response.map(BodyExt::boxed_unsync)
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
