//! How do sessions start, and how do they end with the server?

use std::future::Future;
use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use nerite_api::{Api, check_operator};
use nerite_listen::{Connection, Open, Service, StopSignal};
use nerite_locks::Mutex;
use nerite_request::report::ServerReport;
use nerite_watchdog::{FrontEnd, background, fair};

use crate::answer::{PERMISSION_DENIED, RESOURCE_EXHAUSTED, error_packet};
use crate::inspector::Inspector;
use crate::limits::{HELLO_WITHIN, SESSIONS_PER_USER_MAX};
use crate::listen::Listener;
use crate::peer::Peer;
use crate::session::Session;
use crate::session_socket::{Opened, SessionSocket};
use crate::session_table::SessionTable;
use crate::socket::Socket;

/// The operator's settings.
#[derive(Clone, Debug)]
pub struct Options {
    /// Users besides the server's own that may open sessions: `--session-allow-uid`.
    pub allow_uids: Vec<u32>,
    /// The most open sessions of one user, unless it is the server's own: `--sessions-per-user-max`.
    pub per_user_max: usize,
    /// How long a connection may take to send Hello, if there is a limit: `--session-hello-timeout`.
    pub hello_within: Option<Duration>,
}

impl Default for Options {
    fn default() -> Options {
        Options { allow_uids: Vec::new(), per_user_max: SESSIONS_PER_USER_MAX, hello_within: Some(HELLO_WITHIN) }
    }
}

/// A session socket that is served. Dropping it does not stop the socket.
pub struct Handle {
    service: Service,
    inspector: Inspector,
}

impl Handle {
    /// Shows the sessions, and their shared memory.
    pub fn inspector(&self) -> Inspector {
        self.inspector.clone()
    }

    /// The listeners and connections of the socket.
    pub fn service(&self) -> Service {
        self.service.clone()
    }

    /// Stops serving. The socket is removed, and each session ends when its inferences in flight are answered. The future is ready when the last
    /// session has ended. Dropping it changes nothing.
    pub fn stop(&self) -> impl Future<Output = ()> + Send + use<> {
        self.service.stop()
    }
}

/// Serves sessions over `api` on this socket until [`Handle::stop`]. If the socket's file is removed, the socket is created again. Needs a runtime.
pub fn serve(api: Api, options: Options, listener: Listener) -> Handle {
    serve_at(api, options, vec![Opened::Listening(listener)])
}

/// As [`serve`], at several places. Where the socket could not be created, that is repeated until it succeeds.
pub fn serve_at(api: Api, options: Options, opened: Vec<Opened>) -> Handle {
    let service = Service::default();
    let sessions = SessionTable::new(rustix::process::geteuid().as_raw(), options.per_user_max);
    let inspector = Inspector::new(&api, Arc::clone(&sessions));
    let server = Arc::new(ServerState::new(api.clone(), options, sessions, service.stop_signal()));
    let begin = move |connection, open| server.begin(connection, open);
    let mut socket = SessionSocket::new(api, service.clone(), begin, opened);
    // `open` counts as a connection, so the service stops only after the file is removed.
    let (mut stop, open) = (service.stop_signal(), service.open());
    tokio::spawn(background(async move {
        tokio::select! {
            biased;
            () = stop.wait() => {}
            () = socket.keep() => {}
        }
        drop(socket);
        drop(open);
    }));
    Handle { service, inspector }
}

/// The state that all sessions share.
struct ServerState {
    api: Api,
    options: Options,
    sessions: Arc<SessionTable>,
    report: ServerReport,
    stop: StopSignal,
    last_refusal: Mutex<Option<String>>,
}

impl ServerState {
    fn new(api: Api, options: Options, sessions: Arc<SessionTable>, stop: StopSignal) -> ServerState {
        let report = api.server_report();
        ServerState { api, options, sessions, report, stop, last_refusal: Mutex::default() }
    }

    /// Begins a session, if its client may have one. Runs on the thread that accepts.
    fn begin(&self, connection: Connection, open: Open) {
        let mut socket = match Socket::of(connection) {
            Ok(socket) => socket,
            Err(error) => return log::warn!("a session was closed at once: {error}"),
        };
        let peer = match check_peer(socket.peer(), self.sessions.own_uid(), &self.options.allow_uids) {
            Ok(peer) => peer.clone(),
            Err(why) => {
                self.log_refusal(&why);
                return reject(&socket, PERMISSION_DENIED, why);
            }
        };
        let entry = match self.sessions.reserve(peer) {
            Ok(entry) => entry,
            Err(full) => return reject(&socket, RESOURCE_EXHAUSTED, full.to_string()),
        };
        socket.hold(entry.socket_entry());
        let api = self.api.for_peer(nerite_request::Peer::User { uid: entry.uid() });
        let flow = api.flow().clone();
        let session = Session::new(api, self.report.clone(), socket, entry, self.stop.clone());
        let hello_within = self.options.hello_within;
        let serving = async move {
            let end = session.run(hello_within).await;
            log::debug!("session ended: {end}");
            drop(open);
        };
        tokio::spawn(fair(FrontEnd::Session, &flow, serving));
    }

    /// A refused client can repeat this without end, and must not fill the disk with log lines.
    fn log_refusal(&self, why: &str) {
        let mut last = self.last_refusal.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = last.as_deref() != Some(why);
        log::log!(if is_new { log::Level::Warn } else { log::Level::Debug }, "session refused: {why}");
        *last = Some(why.to_owned());
    }
}

/// The operator is always allowed. Other users are allowed if the operator listed them.
fn check_peer<'a>(peer: &'a io::Result<Peer>, own_uid: u32, allow_uids: &[u32]) -> Result<&'a Peer, String> {
    let peer = peer.as_ref().map_err(|error| format!("the peer's user is not known: {error}"))?;
    let uid = peer.uid;
    if check_operator(uid, own_uid).is_ok() || allow_uids.contains(&uid) {
        return Ok(peer);
    }
    Err(format!(
        "user {uid} may not open sessions with a server of user {own_uid}; --session-allow-uid={uid} would allow it"
    ))
}

/// Sends the reason, if the socket can take it, and closes the connection.
fn reject(socket: &Socket, code: u32, message: String) {
    // The client may have closed the connection already.
    let _ = socket.send(&error_packet(0, code, message).bytes, &[]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(uid: io::Result<u32>, own_uid: u32, allow_uids: &[u32], refusal: Option<&str>) {
        let peer = uid.map(|uid| Peer { uid, pid: 1, command: String::new() });
        assert_eq!(check_peer(&peer, own_uid, allow_uids).err().as_deref(), refusal);
    }

    #[test]
    fn the_servers_own_user_root_and_listed_users_are_allowed() {
        check(Ok(1000), 1000, &[], None);
        check(Ok(0), 1000, &[], None);
        check(Ok(1001), 1000, &[7, 1001], None);
        let refusal = "user 9 may not open sessions with a server of user 1000; --session-allow-uid=9 would allow it";
        check(Ok(9), 1000, &[7], Some(refusal));
        let nobody = io::Error::from(io::ErrorKind::NotConnected);
        check(Err(nobody), 1000, &[1000], Some("the peer's user is not known: not connected"));
    }
}
