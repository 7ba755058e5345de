//! How are connections accepted, even after the socket's file was removed?
//!
//! A cleaner of /tmp, or a mistake, may remove the file or its directory. Open sessions are not affected, but new clients cannot connect. So the
//! socket is created again, with the same checks as the first time. If that fails, it is repeated, and the metrics report that the socket is down.

use std::io;

use nerite_api::{Api, SessionSocketMetrics};
use tokio::time::{sleep, timeout};

use crate::limits::{RECHECK_AFTER, RETRY_PAUSE};
use crate::listen::{BindError, Listener, Location};
use crate::socket::Socket;
use crate::watch::Watch;

/// The session socket, as long as the server runs.
pub(crate) struct Acceptor {
    api: Api,
    location: Location,
    /// `None` while the socket cannot be created.
    listener: Option<Listener>,
    watch: Watch,
    metrics: SessionSocketMetrics,
}

impl Acceptor {
    /// A socket that clients can connect to already.
    pub(crate) fn open(api: Api, listener: Listener) -> Acceptor {
        Acceptor::new(api, listener.location().clone(), Some(listener))
    }

    /// A socket that could not be created yet. The failure was logged.
    pub(crate) fn closed(api: Api, location: Location) -> Acceptor {
        Acceptor::new(api, location, None)
    }

    fn new(api: Api, location: Location, listener: Option<Listener>) -> Acceptor {
        let watch = Watch::new(location.path());
        let metrics = SessionSocketMetrics { is_up: listener.is_some(), reopened: 0 };
        api.note_session_socket(metrics);
        let mut acceptor = Acceptor { api, location, listener, watch, metrics };
        if acceptor.listener.is_some() {
            // The file may have been removed before it was watched.
            acceptor.recheck();
        }
        acceptor
    }

    /// The next connection. May be cancelled without losing one.
    pub(crate) async fn accept(&mut self) -> io::Result<Socket> {
        loop {
            if let Some(listener) = &self.listener {
                tokio::select! {
                    // Connections to the old file are accepted before it is given up.
                    biased;
                    accepted = listener.accept() => return accepted,
                    () = self.watch.changed() => {}
                }
            } else {
                // An error means a timeout without a change.
                let _ = timeout(RECHECK_AFTER, self.watch.changed()).await;
                sleep(RETRY_PAUSE).await;
            }
            self.recheck();
        }
    }

    /// Creates the socket again if clients cannot find it.
    fn recheck(&mut self) {
        let was_up = match &self.listener {
            Some(listener) if listener.is_there() => return,
            found => found.is_some(),
        };
        let path = self.location.path();
        if was_up {
            log::warn!("session socket '{}' was removed or replaced; it is made anew", path.display());
        }
        let made = self.location.bind();
        self.watch = Watch::new(path);
        match made {
            Ok(listener) => {
                log::info!("Started sessions at {}", path.display());
                // If it was removed again before it was watched, the next check finds that.
                self.listener = Some(listener).filter(Listener::is_there);
                self.metrics.is_up = self.listener.is_some();
                self.metrics.reopened += 1;
            }
            Err(error) => {
                if was_up {
                    log_failure(&error);
                }
                self.metrics.is_up = false;
                self.listener = None;
            }
        }
        self.api.note_session_socket(self.metrics);
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.api.note_session_socket(SessionSocketMetrics { is_up: false, ..self.metrics });
    }
}

/// Logs that there are no sessions, and why. Another server of this user is a warning, everything else an error.
pub fn log_failure(error: &BindError) {
    let level = if matches!(error, BindError::InUse(_)) { log::Level::Warn } else { log::Level::Error };
    log::log!(
        level,
        "no sessions (nerite_session_socket_up is 0): {error}; or --session-socket=<path> puts the socket elsewhere. It is tried \
         again every {RECHECK_AFTER:?}"
    );
}
