//! How do connections start and end?

mod connection;
mod connection_calls;
mod cork;
mod local;
mod position;
mod state;
mod unread_bytes;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nerite_api::Api;
use nerite_listen::{
    AdmissionRefused, Connection, ConnectionLimits, ConnectionMonitor, ConnectionRules, Listener, Open, Peers, Service,
    Stream, TimeLimits,
};
use nerite_watchdog::{FrontEnd, fair};
use tokio::io::{AsyncRead, AsyncWrite};

pub(crate) use connection_calls::{Call, CallPhase, ConnectionCalls};
pub(crate) use state::ServerState;
pub(crate) use unread_bytes::{Unread, UnreadOfCall};

use crate::options::Options;

/// A gRPC port that is served. Dropping the handle does not stop the port.
pub struct Handle {
    service: Service,
    calls: Arc<AtomicUsize>,
}

impl Handle {
    /// Number of calls in progress: calls that have begun and whose answer is not sent yet.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.service.connections()
    }

    /// The listeners and connections of the port.
    pub fn service(&self) -> Service {
        self.service.clone()
    }

    /// Stops serving. Listeners close, complete requests are answered, and connections without one end. The future is ready when the last connection
    /// has ended. Dropping the future changes nothing.
    pub fn stop(&self) -> impl Future<Output = ()> + Send + use<> {
        self.service.stop()
    }
}

/// Serves `api` on these listeners until [`Handle::stop`]. Must be called inside an async runtime. Fails if a thread that accepts connections
/// cannot be started.
pub fn serve(api: Api, options: Options, rules: ConnectionRules, listeners: Vec<Listener>) -> io::Result<Handle> {
    let (service, calls) = (Service::default(), Arc::new(AtomicUsize::new(0)));
    let unread = Unread::new(api.account());
    let stop = service.stop_signal();
    let server = Arc::new(ServerState { api, options, unread, rules, calls: Arc::clone(&calls), stop });
    for listener in listeners {
        let (server, peers) = (Arc::clone(&server), Arc::clone(&server.rules.peers));
        let begin = move |connection, open| begin(connection, open, &server);
        service.accept("gRPC", Arc::new(listener), Some(peers), begin)?;
    }
    Ok(Handle { service, calls })
}

/// Serves one connection over any stream until it ends.
pub(crate) async fn serve_stream(api: Api, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let service = Service::default();
    let rules =
        ConnectionRules { peers: Peers::new(ConnectionLimits::for_descriptors(64)), times: TimeLimits::default() };
    let Ok(permit) = rules.peers.admit(api.peer()) else { return };
    let stop = service.stop_signal();
    let monitor = ConnectionMonitor::new(permit, rules.times, stop.clone());
    let unread = Unread::new(api.account());
    let server = ServerState { api, options: Options::default(), unread, rules, calls: Arc::default(), stop };
    connection::serve(stream, Arc::new(server), monitor, service.open()).await;
}

fn begin(connection: Connection, open: Open, server: &Arc<ServerState>) {
    let is_secured = connection.is_tcp() && server.options.tls.is_some();
    let permit = match server.rules.peers.admit(&connection.peer) {
        Ok(permit) => permit,
        // A client that expects TLS cannot read an unencrypted message.
        Err(_) if is_secured => return connection.reject(&[]),
        Err(refused) => return connection.reject(&refusal(&refused)),
    };
    let monitor = ConnectionMonitor::new(permit, server.rules.times, server.stop.clone());
    let server = server.for_peer(connection.peer.clone());
    let flow = server.api.flow().clone();
    match (connection.into_stream(monitor.permit()), server.options.tls.clone()) {
        (Ok(Stream::Tcp(stream)), None) => {
            tokio::spawn(fair(FrontEnd::Grpc, &flow, connection::serve_tcp(stream, server, monitor, open)));
        }
        (Ok(Stream::Tcp(stream)), Some(tls)) => {
            tokio::spawn(fair(FrontEnd::Grpc, &flow, connection::serve_secured(stream, tls, server, monitor, open)));
        }
        (Ok(Stream::Unix(stream)), _) => {
            tokio::spawn(fair(FrontEnd::Grpc, &flow, connection::serve_local(stream, server, monitor, open)));
        }
        (Err(error), _) => log::warn!("a gRPC connection was closed at once: {error}"),
    }
}

/// The bytes for a client whose connection is refused: empty SETTINGS, and GOAWAY with the reason.
fn refusal(refused: &AdmissionRefused) -> Vec<u8> {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const GOAWAY: u8 = 7;
    const ENHANCE_YOUR_CALM: [u8; 4] = [0, 0, 0, 11];
    let reason = refused.to_string();
    let [.., a, b, c] = (8 + reason.len()).to_be_bytes();
    let header = [a, b, c, GOAWAY, 0, 0, 0, 0, 0];
    let last_stream = [0; 4];
    [&SETTINGS[..], &header, &last_stream, &ENHANCE_YOUR_CALM, reason.as_bytes()].concat()
}
