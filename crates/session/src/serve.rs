//! How do sessions start, and how do they end with the server?

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use nerite_api::{Api, check_operator};
use nerite_request::report::ServerReport;
use nerite_watchdog::{FrontEnd, fair, watched};
use tokio::sync::watch;

use crate::acceptor::Acceptor;
use crate::answer::{PERMISSION_DENIED, RESOURCE_EXHAUSTED, error_packet};
use crate::inspector::Inspector;
use crate::limits::{HELLO_WITHIN, SESSIONS_PER_USER_MAX};
use crate::listen::{Listener, Location};
use crate::peer::Peer;
use crate::session::Session;
use crate::session_table::SessionTable;
use crate::socket::Socket;
use crate::stopped::Stopped;

/// How long no connection is accepted after a failed accept. The usual cause is that no descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
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
    stop: watch::Sender<bool>,
    open: watch::Sender<()>,
    inspector: Inspector,
}

impl Handle {
    /// Shows the sessions, and their shared memory.
    pub fn inspector(&self) -> Inspector {
        self.inspector.clone()
    }

    /// Stops serving. The socket is removed, and each session ends when its inferences in flight are answered. The future is ready when the last
    /// session has ended. Dropping it changes nothing.
    pub fn stop(&self) -> impl Future<Output = ()> + Send + use<> {
        self.stop.send_replace(true);
        let open = self.open.clone();
        async move { open.closed().await }
    }
}

/// Serves sessions over `api` on this socket until [`Handle::stop`]. If the socket's file is removed, the socket is created again. Needs a runtime.
pub fn serve(api: Api, options: Options, listener: Listener) -> Handle {
    let acceptor = Acceptor::open(api.clone(), listener);
    start(api, options, acceptor)
}

/// As [`serve`], for a socket that could not be created. Creating it is repeated until it succeeds.
pub fn serve_later(api: Api, options: Options, location: Location) -> Handle {
    let acceptor = Acceptor::closed(api.clone(), location);
    start(api, options, acceptor)
}

fn start(api: Api, options: Options, acceptor: Acceptor) -> Handle {
    let (stop, stopped) = watch::channel(false);
    let (open, opened) = watch::channel(());
    let sessions = SessionTable::new(rustix::process::geteuid().as_raw(), options.per_user_max);
    let inspector = Inspector::new(&api, Arc::clone(&sessions));
    tokio::spawn(watched(FrontEnd::Session, accept(api, options, acceptor, sessions, Stopped(stopped), opened)));
    Handle { stop, open, inspector }
}

async fn accept(
    api: Api,
    options: Options,
    mut acceptor: Acceptor,
    sessions: Arc<SessionTable>,
    mut stopped: Stopped,
    open: watch::Receiver<()>,
) {
    let server = api.server_report().unwrap_or_else(|_| ServerReport {
        name: String::new(),
        version: String::new(),
        extensions: Vec::new(),
    });
    let mut last_logged = None;
    loop {
        let accepted = tokio::select! {
            biased;
            () = stopped.wait() => return,
            accepted = acceptor.accept() => accepted,
        };
        let socket = match accepted {
            Ok(socket) => socket,
            Err(fault) => {
                log::warn!("failed to accept a session: {fault}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let peer = match check_peer(socket.peer(), sessions.own_uid(), &options.allow_uids) {
            Ok(peer) => peer.clone(),
            Err(why) => {
                // A refused client can repeat this without end, and must not fill the disk with log lines.
                let level = if last_logged.as_ref() == Some(&why) { log::Level::Debug } else { log::Level::Warn };
                log::log!(level, "session refused: {why}");
                last_logged = Some(why.clone());
                reject(&socket, PERMISSION_DENIED, why);
                continue;
            }
        };
        let entry = match sessions.reserve(peer) {
            Ok(entry) => entry,
            Err(full) => {
                reject(&socket, RESOURCE_EXHAUSTED, full.to_string());
                continue;
            }
        };
        let api = api.for_peer(nerite_request::Peer::User { uid: entry.uid() });
        let flow = api.flow().clone();
        let session = Session::new(api, server.clone(), socket, entry, stopped.clone());
        let (open, hello_within) = (open.clone(), options.hello_within);
        let serving = async move {
            let end = session.run(hello_within).await;
            log::debug!("session ended: {end}");
            drop(open);
        };
        tokio::spawn(fair(FrontEnd::Session, &flow, serving));
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
