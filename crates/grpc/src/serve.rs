//! How do connections start and end?

mod connection;
mod cork;
mod link;
mod local;
mod metered;
mod position;
mod state;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nerite_api::Api;
use nerite_listen::{
    Connection, ConnectionLimits, Full, Listener, Open, Overseer, Peers, Rules, Service, Stream, TimeLimits,
};
use nerite_watchdog::{FrontEnd, fair};
use tokio::io::{AsyncRead, AsyncWrite};

pub(crate) use link::{Call, CallPhase, Link};
pub(crate) use metered::{Unread, UnreadOfCall};
pub(crate) use state::ServerState;

use crate::options::Options;

/// A gRPC port that is served. Dropping it does not stop the port.
pub struct Handle {
    service: Service,
    calls: Arc<AtomicUsize>,
}

impl Handle {
    /// Number of calls in progress: those that have begun and whose answer is not sent yet.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.service.connections()
    }

    /// Its listeners and connections.
    pub fn service(&self) -> Service {
        self.service.clone()
    }

    /// Stops serving. Listeners close, complete requests are answered, and connections without one end. The future is ready when the last connection
    /// has ended. Dropping it changes nothing.
    pub fn stop(&self) -> impl Future<Output = ()> + Send + use<> {
        self.service.stop()
    }
}

/// Serves `api` on these listeners until [`Handle::stop`]. Needs a runtime. An error means that there is no thread that accepts.
pub fn serve(api: Api, options: Options, rules: Rules, listeners: Vec<Listener>) -> io::Result<Handle> {
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
    let rules = Rules { peers: Peers::new(ConnectionLimits::for_descriptors(64)), times: TimeLimits::default() };
    let Ok(permit) = rules.peers.admit(api.peer()) else { return };
    let stop = service.stop_signal();
    let overseer = Overseer::new(permit, rules.times, stop.clone());
    let unread = Unread::new(api.account());
    let server = ServerState { api, options: Options::default(), unread, rules, calls: Arc::default(), stop };
    connection::serve(stream, Arc::new(server), overseer, service.open()).await;
}

fn begin(connection: Connection, open: Open, server: &Arc<ServerState>) {
    let is_secured = connection.is_tcp() && server.options.tls.is_some();
    let permit = match server.rules.peers.admit(&connection.peer) {
        Ok(permit) => permit,
        // Where TLS is expected, no unencrypted message can be sent.
        Err(_) if is_secured => return connection.turn_away(&[]),
        Err(full) => return connection.turn_away(&refusal(&full)),
    };
    let overseer = Overseer::new(permit, server.rules.times, server.stop.clone());
    let server = server.for_peer(connection.peer.clone());
    let flow = server.api.flow().clone();
    match (connection.into_stream(), server.options.tls.clone()) {
        (Ok(Stream::Tcp(stream)), None) => {
            tokio::spawn(fair(FrontEnd::Grpc, &flow, connection::serve_tcp(stream, server, overseer, open)));
        }
        (Ok(Stream::Tcp(stream)), Some(tls)) => {
            tokio::spawn(fair(FrontEnd::Grpc, &flow, connection::serve_secured(stream, tls, server, overseer, open)));
        }
        (Ok(Stream::Unix(stream)), _) => {
            tokio::spawn(fair(FrontEnd::Grpc, &flow, connection::serve_local(stream, server, overseer, open)));
        }
        (Err(error), _) => log::warn!("a gRPC connection was closed at once: {error}"),
    }
}

/// The bytes for a client whose connection is refused: empty SETTINGS, and GOAWAY with the reason.
fn refusal(full: &Full) -> Vec<u8> {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const GOAWAY: u8 = 7;
    const ENHANCE_YOUR_CALM: [u8; 4] = [0, 0, 0, 11];
    let reason = full.to_string();
    let [.., a, b, c] = (8 + reason.len()).to_be_bytes();
    let header = [a, b, c, GOAWAY, 0, 0, 0, 0, 0];
    let last_stream = [0; 4];
    [&SETTINGS[..], &header, &last_stream, &ENHANCE_YOUR_CALM, reason.as_bytes()].concat()
}
