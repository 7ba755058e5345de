//! How does the session socket stay where clients look for it?
//! A cleaner of `/tmp`, or a mistake, may remove the socket's file or its directory. Open sessions are not affected, but new clients cannot connect. So the
//! socket is created again, with the same checks as the first time. Failed attempts are repeated, and the metrics report meanwhile that the socket is down.

use std::sync::Arc;

use nerite_api::{Api, SessionSocketMetrics};
use nerite_listen::{Connection, Open, Service};
use tokio::time::{sleep, timeout};

use crate::limits::{RECHECK_AFTER, RETRY_PAUSE};
use crate::listen::{BindError, Listener, Location};
use crate::watch::Watch;

/// The session socket, as long as the server runs.
pub(crate) struct SessionSocket<B> {
    api: Api,
    service: Service,
    /// Begins a session on a connection.
    begin: B,
    location: Location,
    /// `None` while the socket cannot be created.
    listener: Option<Listener>,
    watch: Watch,
    metrics: SessionSocketMetrics,
}

impl<B: Fn(Connection, Open) + Clone + Send + 'static> SessionSocket<B> {
    /// The socket at `location`. `listener` is `None` if the socket could not be created yet; that failure was logged.
    pub(crate) fn new(
        api: Api,
        service: Service,
        begin: B,
        location: Location,
        listener: Option<Listener>,
    ) -> SessionSocket<B> {
        let watch = Watch::new(location.path());
        let metrics = SessionSocketMetrics::default();
        let mut socket = SessionSocket { api, service, begin, location, listener: None, watch, metrics };
        if let Some(listener) = listener {
            socket.listen(listener);
            // The file may have been removed before it was watched.
            socket.recheck();
        }
        socket.note_metrics();
        socket
    }

    /// Creates the socket again each time that clients cannot find it. May be cancelled at any time.
    pub(crate) async fn keep(&mut self) {
        loop {
            if self.listener.is_some() {
                self.watch.changed().await;
            } else {
                // An error means a timeout without a change.
                let _ = timeout(RECHECK_AFTER, self.watch.changed()).await;
                sleep(RETRY_PAUSE).await;
            }
            self.recheck();
            self.note_metrics();
        }
    }

    fn recheck(&mut self) {
        if self.listener.as_ref().is_some_and(Listener::is_there) {
            return;
        }
        let path = self.location.path();
        let old = self.listener.take();
        if let Some(old) = &old {
            log::warn!("session socket '{}' was removed or replaced; it is made anew", path.display());
            // Connections to the old file are still accepted.
            old.socket().drain();
        }
        let made = self.location.bind();
        self.watch = Watch::new(path);
        match made {
            Ok(listener) => {
                log::info!("Started sessions at {}", path.display());
                self.metrics.reopened += 1;
                // The new file may have been removed before it was watched. Then the next check finds that.
                if listener.is_there() {
                    self.listen(listener);
                }
            }
            Err(error) if old.is_some() => log_failure(&error),
            Err(_) => {}
        }
    }

    /// Accepts the connections of `listener`. If no thread can be started for that, the socket is created again later.
    fn listen(&mut self, listener: Listener) {
        match self.service.accept("session", Arc::clone(listener.socket()), None, self.begin.clone()) {
            Ok(()) => self.listener = Some(listener),
            Err(cause) => log_failure(&BindError::System { path: self.location.path().to_owned(), cause }),
        }
    }

    fn note_metrics(&mut self) {
        self.metrics.is_up = self.listener.is_some();
        self.api.note_session_socket(self.metrics);
    }
}

impl<B> Drop for SessionSocket<B> {
    fn drop(&mut self) {
        self.api.note_session_socket(SessionSocketMetrics { is_up: false, ..self.metrics });
    }
}

/// Logs that there are no sessions, and why. If another server of this user has the socket, that is a warning. Everything else is an error.
pub fn log_failure(error: &BindError) {
    let level = if matches!(error, BindError::InUse(_)) { log::Level::Warn } else { log::Level::Error };
    log::log!(
        level,
        "no sessions (nerite_session_socket_up is 0): {error}; --session-socket=<path> puts the socket elsewhere. It is tried \
         again every {RECHECK_AFTER:?}"
    );
}
