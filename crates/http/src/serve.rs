//! How are HTTP connections accepted, served and closed?

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nerite_api::{Api, Verdict, WebSites, share_with};
use nerite_budget::Account;
use nerite_listen::{
    AdmissionRefused, Connection, ConnectionLimits, ConnectionMonitor, ConnectionRules, FutureConnection,
    HANDSHAKE_MAX, Listener, MemoryLimitedStream, Open, Peers, Service, Stream, TimeLimits, Timed, Tls,
    monitor_connection, until_shed,
};
use nerite_request::Peer;
use nerite_watchdog::{Flow, FrontEnd, fair};
use nerite_wire::json::write_error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::dispatch::dispatch;
use crate::incoming::{Answering, Incoming};
use crate::limits::LEAVE_MAX;
use crate::reply::{Outgoing, PLAIN, error};
use crate::unread::answer_unread;

/// The HTTP service while it runs.
#[derive(Clone)]
pub struct Handle(Arc<ServerState>);

/// How the port is secured, and for which web sites.
#[derive(Clone, Debug)]
pub struct Options {
    /// The certificates of TCP connections; `None` for plain HTTP. Unix sockets are not encrypted: the file system decides who may connect.
    pub tls: Option<Tls>,
    /// Time that a client has for a TLS handshake; `None` for no limit.
    pub handshake_max: Option<Duration>,
    /// Which web sites may use the server. Each listener makes its own rules of these.
    pub web_sites: WebSites,
}

impl Default for Options {
    fn default() -> Options {
        Options { tls: None, handshake_max: Some(HANDSHAKE_MAX), web_sites: WebSites::default() }
    }
}

/// Answers requests: the API, or a substitute in tests.
pub(crate) trait Handler: Send + Sync + 'static {
    /// The handler for one connection, whose client is `peer`.
    fn for_peer(self: &Arc<Self>, peer: Peer) -> Arc<Self>;

    /// The account of the connection.
    fn account(&self) -> &Account;

    /// The flow that the thread time of its tasks is charged to.
    fn flow(&self) -> Flow;

    /// Answers one request. The future is dropped when the client disconnects.
    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = Response<Outgoing>> + Send;
}

impl Handler for Api {
    fn for_peer(self: &Arc<Self>, peer: Peer) -> Arc<Self> {
        Arc::new(Api::for_peer(self, peer))
    }

    fn account(&self) -> &Account {
        Api::account(self)
    }

    fn flow(&self) -> Flow {
        Api::flow(self).clone()
    }

    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = Response<Outgoing>> + Send {
        dispatch(self, request)
    }
}

/// The rules for browsers of one listener. A Unix socket has none.
type Sites = Option<Arc<WebSites>>;

/// What all connections share.
struct ServerState {
    options: Options,
    rules: ConnectionRules,
    service: Service,
}

impl ServerState {
    fn new(options: Options, rules: ConnectionRules) -> Arc<ServerState> {
        Arc::new(ServerState { options, rules, service: Service::default() })
    }
}

/// Serves the connections of `listeners`. Must be called inside an async runtime with I/O and time. Fails if a thread that accepts
/// connections cannot be started.
pub fn serve(api: Api, options: Options, rules: ConnectionRules, listeners: Vec<Listener>) -> io::Result<Handle> {
    serve_by(&Arc::new(api), options, rules, listeners)
}

pub(crate) fn serve_by(
    handler: &Arc<impl Handler>,
    options: Options,
    rules: ConnectionRules,
    listeners: Vec<Listener>,
) -> io::Result<Handle> {
    let server = ServerState::new(options, rules);
    for listener in listeners {
        let (handler, state, peers) = (Arc::clone(handler), Arc::clone(&server), Arc::clone(&server.rules.peers));
        let sites = server.options.web_sites.at(listener.address()).map(Arc::new);
        let begin = move |connection, open| begin(connection, open, &handler, &state, sites.clone());
        server.service.accept("HTTP", Arc::new(listener), Some(peers), begin)?;
    }
    Ok(Handle(server))
}

/// Serves one connection over any stream until it ends.
pub(crate) async fn serve_stream(api: Api, stream: impl AsyncRead + AsyncWrite + Unpin) {
    let rules =
        ConnectionRules { peers: Peers::new(ConnectionLimits::for_descriptors(64)), times: TimeLimits::default() };
    let Ok(permit) = rules.peers.admit(api.peer()) else { return };
    let server = ServerState::new(Options::default(), rules);
    let monitor = ConnectionMonitor::new(permit, server.rules.times, server.service.stop_signal());
    serve_connection(stream, Arc::new(api), None, monitor, server.service.open()).await;
}

impl Handle {
    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.0.service.connections()
    }

    /// The listeners and connections of the service.
    pub fn service(&self) -> Service {
        self.0.service.clone()
    }

    /// Stops listening. Connections without a complete request are closed now, and the others after their answer. The future resolves when all are
    /// closed.
    pub fn stop(&self) -> impl Future<Output = ()> + Send + use<> {
        self.0.service.stop()
    }
}

fn begin(connection: Connection, open: Open, handler: &Arc<impl Handler>, server: &ServerState, sites: Sites) {
    let tls = server.options.tls.clone().filter(|_| connection.is_tcp());
    let permit = match server.rules.peers.admit(&connection.peer) {
        Ok(permit) => permit,
        // A client that expects TLS cannot read a plain answer.
        Err(_) if tls.is_some() => return connection.reject(&[]),
        Err(refused) => return connection.reject(&refusal(&refused)),
    };
    let monitor = ConnectionMonitor::new(permit, server.rules.times, server.service.stop_signal());
    let handler = handler.for_peer(connection.peer.clone());
    let (flow, handshake_max) = (handler.flow(), server.options.handshake_max);
    match (connection.into_stream(monitor.permit()), tls) {
        (Ok(Stream::Tcp(stream)), None) => {
            drop(tokio::spawn(fair(FrontEnd::Http, &flow, serve_connection(stream, handler, sites, monitor, open))));
        }
        (Ok(Stream::Tcp(stream)), Some(tls)) => {
            let serving = serve_secured(stream, tls, handshake_max, handler, sites, monitor, open);
            drop(tokio::spawn(fair(FrontEnd::Http, &flow, serving)));
        }
        (Ok(Stream::Unix(stream)), _) => {
            drop(tokio::spawn(fair(FrontEnd::Http, &flow, serve_connection(stream, handler, sites, monitor, open))));
        }
        (Err(error), _) => log::warn!("an HTTP connection was closed at once: {error}"),
    }
}

/// The answer to a client whose connection is refused.
fn refusal(refused: &AdmissionRefused) -> Vec<u8> {
    let body = write_error(&refused.to_string());
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    [head.into_bytes(), body].concat()
}

/// Negotiates TLS, then serves the connection.
async fn serve_secured(
    stream: TcpStream,
    tls: Tls,
    handshake_max: Option<Duration>,
    handler: Arc<impl Handler>,
    sites: Sites,
    mut monitor: ConnectionMonitor,
    open: Open,
) {
    if let Some(stream) = tls.handshake(stream, &mut monitor, handshake_max).await {
        serve_timed(stream, handler, sites, monitor, open).await;
    }
}

/// Serves a plain connection.
async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    handler: Arc<impl Handler>,
    sites: Sites,
    monitor: ConnectionMonitor,
    open: Open,
) {
    let stream = Timed::new(stream, Arc::clone(monitor.progress()));
    serve_timed(stream, handler, sites, monitor, open).await;
}

/// Serves a connection whose traffic is recorded in the monitor's [`nerite_listen::Progress`].
async fn serve_timed(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    handler: Arc<impl Handler>,
    sites: Sites,
    mut monitor: ConnectionMonitor,
    open: Open,
) {
    let handler = &*handler;
    let progress = Arc::clone(monitor.progress());
    let stream = TokioIo::new(MemoryLimitedStream::new(stream, handler.account()));
    let is_draining = AtomicBool::new(false);
    let service = service_fn(|request: Request<hyper::body::Incoming>| {
        progress.begin_request();
        let is_draining = &is_draining;
        let request = request.map(|body| Incoming::new(body, Arc::clone(&progress)));
        let progress = Arc::clone(&progress);
        let verdict = sites.as_ref().map_or(Verdict::Serve, |sites| sites.judge(request.method(), request.headers()));
        async move {
            let mut response = match verdict {
                Verdict::Serve => handler.answer(request).await,
                other => Box::pin(answer_judged(handler, other, request)).await,
            };
            if is_draining.load(Ordering::Relaxed) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response.map(|body| Answering::new(body, progress)))
        }
    });
    let connection = http1::Builder::new().auto_date_header(false).serve_connection(stream, service);
    let mut served = FutureConnection {
        connection: pin!(connection),
        shut_down: |connection| connection.graceful_shutdown(),
        is_draining: &is_draining,
    };
    // The grace period is zero, because a connection that the monitor ends has no request under way.
    let served_until_shed = monitor_connection(&mut served, &mut monitor, Duration::ZERO);
    until_shed(handler.account(), LEAVE_MAX, served_until_shed).await;
    drop(open);
}

/// Answers a request as its verdict says. Its future is larger than that of [`Handler::answer`].
async fn answer_judged(handler: &impl Handler, verdict: Verdict, request: Request<Incoming>) -> Response<Outgoing> {
    let refused = match verdict {
        Verdict::Serve => return handler.answer(request).await,
        Verdict::ServeSite(origin) => {
            let mut response = handler.answer(request).await;
            share_with(response.headers_mut(), origin);
            return response;
        }
        Verdict::Preflight(headers) => {
            let mut response = Response::new(Outgoing::Empty);
            *response.status_mut() = StatusCode::NO_CONTENT;
            *response.headers_mut() = *headers;
            response
        }
        Verdict::Refuse(refusal) => error(refusal.code, PLAIN, &refusal.text),
    };
    let (parts, body) = request.into_parts();
    answer_unread(&handler.flow(), &parts.headers, body, refused).await
}

#[cfg(test)]
mod tests;
