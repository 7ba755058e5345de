//! Where do connections come from, also after the socket's file was removed?
//!
//! A cleaner of /tmp, or a mistake, removes the file or its directory. Open sessions do not notice; new clients find nothing. Then
//! the socket is made anew, with the checks of the first time. If that fails it is tried again, and the metrics say that it is
//! down.

use std::io;

use nerite_api::{Api, SessionSocketMetrics};
use tokio::time::{sleep, timeout};

use crate::limits::{LOOK_AGAIN_AFTER, RETRY_PAUSE};
use crate::listen::{BindError, Listener, Location};
use crate::socket::Socket;
use crate::watch::Watch;

/// The session socket for as long as the server runs.
pub(crate) struct Door {
    api: Api,
    location: Location,
    /// `None` while the socket cannot be made.
    listener: Option<Listener>,
    watch: Watch,
    metrics: SessionSocketMetrics,
}

impl Door {
    /// A socket that clients can connect to already.
    pub(crate) fn open(api: Api, listener: Listener) -> Door {
        Door::new(api, listener.location().clone(), Some(listener))
    }

    /// A socket that could not be made so far, which the log knows.
    pub(crate) fn closed(api: Api, location: Location) -> Door {
        Door::new(api, location, None)
    }

    fn new(api: Api, location: Location, listener: Option<Listener>) -> Door {
        let watch = Watch::new(location.path());
        let metrics = SessionSocketMetrics { is_up: listener.is_some(), reopened: 0 };
        api.note_session_socket(metrics);
        let mut door = Door { api, location, listener, watch, metrics };
        if door.listener.is_some() {
            // The file may have gone before it was watched.
            door.look();
        }
        door
    }

    /// The next connection. Dropping the future loses none.
    pub(crate) async fn accept(&mut self) -> io::Result<Socket> {
        loop {
            if let Some(listener) = &self.listener {
                tokio::select! {
                    // Those who found the old file are heard before it is given up.
                    biased;
                    accepted = listener.accept() => return accepted,
                    () = self.watch.changed() => {}
                }
            } else {
                // An error means that nothing happened in that time.
                let _ = timeout(LOOK_AGAIN_AFTER, self.watch.changed()).await;
                sleep(RETRY_PAUSE).await;
            }
            self.look();
        }
    }

    /// Makes the socket anew if clients cannot find it.
    fn look(&mut self) {
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
                // If it was removed again before it was watched, it is tried again later.
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

impl Drop for Door {
    fn drop(&mut self) {
        self.api.note_session_socket(SessionSocketMetrics { is_up: false, ..self.metrics });
    }
}

/// Says loudly that there are no sessions, and why. Another server of this user is no fault; everything else is one.
pub fn log_failure(error: &BindError) {
    let level = if matches!(error, BindError::InUse(_)) { log::Level::Warn } else { log::Level::Error };
    log::log!(
        level,
        "no sessions (nerite_session_socket_up is 0): {error}; or --session-socket=<path> puts the socket elsewhere. It is tried \
         again every {LOOK_AGAIN_AFTER:?}"
    );
}
