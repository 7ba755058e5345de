//! How are metrics connections accepted, served and closed?

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::{AUTHORIZATION, HeaderValue};
use http_body_util::{BodyExt, Full};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nerite_api::{Api, Status, Verdict, WebSites, aside, share_with};
use nerite_budget::Charge;
use nerite_listen::{
    Awaited, Connection, ConnectionMonitor, ConnectionRules, FutureConnection, HANDSHAKE_MAX, Listener,
    MemoryLimitedStream, Open, Peers, Progress, Service, StopSignal, Stream, Timed, Tls, monitor_connection,
    until_shed,
};
use nerite_watchdog::{FrontEnd, fair};
use nerite_wire::prometheus::{ConnectionMetrics, MetricsReport, ServerMetrics, write_metrics, write_metrics_of};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::answer::{answer, failed, forbidden, preflight, refused, wants_page};
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

/// How the port is secured, and for which web sites.
#[derive(Clone, Debug)]
pub struct Options {
    /// The certificates of TCP connections; `None` for plain HTTP.
    pub tls: Option<Tls>,
    /// Time that a client has for a TLS handshake; `None` for no limit.
    pub handshake_max: Option<Duration>,
    /// The ports with TLS whose certificates are shown, by name.
    pub certificates: Vec<(&'static str, Tls)>,
    /// Which web sites may read the metrics. The listener makes its own rules of these.
    pub web_sites: WebSites,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            tls: None,
            handshake_max: Some(HANDSHAKE_MAX),
            certificates: Vec::new(),
            web_sites: WebSites::default(),
        }
    }
}

/// The state that all connections share.
#[derive(Clone)]
struct Shared {
    api: Api,
    peers: Arc<Peers>,
    options: Options,
    beside: Option<Arc<dyn Beside>>,
    /// The rules for browsers. A Unix socket has none.
    sites: Option<Arc<WebSites>>,
    /// The length in bytes of the last long page.
    last_page: Arc<AtomicUsize>,
}

/// The bytes that a long page is expected to have, if there was none before.
const LONG_PAGE_MIN: usize = 64 << 10;

/// Serves the connections of `listener`. `beside` answers what is not asked of the metrics. Must be called inside an async runtime with I/O and time.
/// An error means that there is no thread that accepts.
pub fn serve(
    api: Api,
    options: Options,
    rules: ConnectionRules,
    listener: Listener,
    beside: Option<Arc<dyn Beside>>,
) -> io::Result<Handle> {
    let service = Service::default();
    let sites = options.web_sites.at(listener.address()).map(Arc::new);
    let shared = Shared { api, peers: Arc::clone(&rules.peers), options, beside, sites, last_page: Arc::default() };
    let (peers, stop) = (Arc::clone(&rules.peers), service.stop_signal());
    let begin = move |connection, open| begin(connection, open, &shared, &rules, &stop);
    service.accept("metrics", Arc::new(listener), Some(peers), begin)?;
    Ok(Handle(service))
}

fn begin(connection: Connection, open: Open, shared: &Shared, rules: &ConnectionRules, stop: &StopSignal) {
    let tls = shared.options.tls.clone().filter(|_| connection.is_tcp());
    let permit = match rules.peers.admit(&connection.peer) {
        Ok(permit) => permit,
        // A client that expects TLS cannot read a plain answer.
        Err(_) if tls.is_some() => return connection.reject(&[]),
        Err(refused) => {
            return connection.reject(
                format!("HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\r\n{refused}\n").as_bytes(),
            );
        }
    };
    let monitor = ConnectionMonitor::new(permit, rules.times, stop.clone());
    let shared = Shared { api: shared.api.for_peer(connection.peer.clone()), ..shared.clone() };
    let flow = shared.api.flow().clone();
    match (connection.into_stream(monitor.permit()), tls) {
        (Ok(Stream::Tcp(stream)), None) => {
            drop(tokio::spawn(fair(FrontEnd::Metrics, &flow, serve_connection(shared, stream, monitor, open))));
        }
        (Ok(Stream::Tcp(stream)), Some(tls)) => {
            drop(tokio::spawn(fair(FrontEnd::Metrics, &flow, serve_secured(shared, stream, tls, monitor, open))));
        }
        (Ok(Stream::Unix(stream)), _) => {
            drop(tokio::spawn(fair(FrontEnd::Metrics, &flow, serve_connection(shared, stream, monitor, open))));
        }
        (Err(error), _) => log::warn!("a metrics connection was closed at once: {error}"),
    }
}

/// Negotiates TLS, then serves the connection.
async fn serve_secured(shared: Shared, stream: TcpStream, tls: Tls, mut monitor: ConnectionMonitor, open: Open) {
    if let Some(stream) = tls.handshake(stream, &mut monitor, shared.options.handshake_max).await {
        serve_timed(shared, stream, monitor, open).await;
    }
}

/// Serves a plain connection.
async fn serve_connection(
    shared: Shared,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    monitor: ConnectionMonitor,
    open: Open,
) {
    let stream = Timed::new(stream, Arc::clone(monitor.progress()));
    serve_timed(shared, stream, monitor, open).await;
}

/// Serves a connection whose traffic is noted in the monitor's [`Progress`].
async fn serve_timed(
    shared: Shared,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    mut monitor: ConnectionMonitor,
    open: Open,
) {
    let progress = Arc::clone(monitor.progress());
    let stream = MemoryLimitedStream::new(stream, shared.api.account());
    let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
        progress.begin_request();
        let (shared, progress) = (shared.clone(), Arc::clone(&progress));
        async move { Ok::<_, Infallible>(respond(shared, request, progress).await) }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // The metrics are served to the end, so the service is never drained.
    let is_draining = AtomicBool::new(false);
    let mut served = FutureConnection {
        connection: pin!(connection),
        shut_down: |connection| connection.graceful_shutdown(),
        is_draining: &is_draining,
    };
    let served_until_shed = monitor_connection(&mut served, &mut monitor, Duration::ZERO);
    until_shed(shared.api.account(), LEAVE_MAX, served_until_shed).await;
    drop(open);
}

async fn respond(
    shared: Shared,
    mut request: hyper::Request<hyper::body::Incoming>,
    progress: Arc<Progress>,
) -> Response<Body> {
    let api = &shared.api;
    if let Some(beside) = &shared.beside {
        match beside.answer(api, request, &progress) {
            Ok(answer) => return answer.await,
            Err(own) => request = *own,
        }
    }
    let response = judged(&shared, request).await;
    // From here on the server waits for the client: to read the answer, and then for its next request.
    progress.wait_for(Awaited::Request);
    response.map(BodyExt::boxed_unsync)
}

/// Answers a request as the rules for browsers say.
async fn judged(shared: &Shared, request: hyper::Request<hyper::body::Incoming>) -> Response<Full<Bytes>> {
    let sites = shared.sites.as_ref();
    match sites.map_or(Verdict::Serve, |sites| sites.judge(request.method(), request.headers())) {
        Verdict::Serve => metrics(shared, request).await,
        Verdict::ServeSite(origin) => {
            let mut response = metrics(shared, request).await;
            share_with(response.headers_mut(), origin);
            response
        }
        Verdict::Preflight(headers) => preflight(*headers),
        Verdict::Refuse(refusal) => refused(refusal.code, &refusal.text),
    }
}

async fn metrics(shared: &Shared, request: hyper::Request<hyper::body::Incoming>) -> Response<Full<Bytes>> {
    let api = &shared.api;
    let wants_page = wants_page(request.method(), request.uri().path());
    if wants_page
        && let Err(refused) = api.allow_metrics(request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes))
    {
        return forbidden(&refused);
    }
    let page = if wants_page { page(shared).await } else { Ok((String::new(), api.account().charge(0))) };
    match page {
        Ok((text, charge)) => answer(charge, request.method(), text),
        Err(status) => failed(&status),
    }
}

/// The text, with a charge of its memory. There may be so many models and metrics that a page of them would keep others waiting. Such a page is made on
/// another thread, and charged before it is made: a client that asks for many at once pays for all of them. A connection that has to end because of that
/// gets none.
async fn page(shared: &Shared) -> Result<(String, Charge), Status> {
    let (api, peers) = (shared.api.clone(), Arc::clone(&shared.peers));
    let certificates = ends_of(&shared.options.certificates).await;
    if !api.has_long_metrics() {
        return Ok((write_metrics(&report(&api, &peers, certificates)), api.account().charge(0)));
    }
    let expected = shared.last_page.load(Ordering::Relaxed);
    // Values get more digits, and models are loaded, so the page may be somewhat longer than the last one.
    let bytes = expected.saturating_add(expected / 16).max(LONG_PAGE_MIN);
    let charge = api.account().charge(bytes);
    let reader = api.clone();
    let text = aside(api.account(), move || write_metrics_of(&report(&reader, &peers, certificates), bytes)).await?;
    shared.last_page.store(text.len(), Ordering::Relaxed);
    Ok((text, charge))
}

/// When the certificates of these ports end. One that does not tell is left out.
async fn ends_of(ports: &[(&'static str, Tls)]) -> Vec<(&'static str, u64)> {
    let mut ends = Vec::with_capacity(ports.len());
    for (port, tls) in ports {
        ends.extend(tls.ends_at_s().await.map(|seconds| (*port, seconds)));
    }
    ends
}

fn report(api: &Api, peers: &Peers, certificates: Vec<(&'static str, u64)>) -> MetricsReport {
    let counts = peers.counts();
    let connections =
        ConnectionMetrics { open: counts.open, peers: counts.peers, refused: counts.refused, ended: counts.ended };
    let report = api.metrics_report();
    MetricsReport { connections, server: ServerMetrics { certificates, ..report.server }, ..report }
}
