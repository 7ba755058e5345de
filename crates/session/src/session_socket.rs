//! How does the session socket stay where clients look for it?
//! A cleaner of `/tmp`, or a mistake, may remove the socket's file or its directory. Open sessions are not affected, but new clients cannot connect. So the
//! socket is created again, with the same checks as the first time. Failed attempts are repeated, and the metrics report meanwhile that the socket is down.
//! A server may have its socket at several places.

use std::sync::Arc;

use nerite_api::{Api, SessionSocketMetrics};
use nerite_listen::{Connection, Open, Service};
use tokio::time::{sleep, timeout};

use crate::limits::{RECHECK_AFTER, RETRY_PAUSE};
use crate::listen::{BindError, Listener, Location};
use crate::watch::Watch;

/// A place of the session socket at the start.
#[derive(Debug)]
pub enum Opened {
    /// Clients can connect there.
    Listening(Listener),
    /// The socket could not be created. Creating it is repeated while the server runs.
    Failed(Location, BindError),
}

/// The session socket, as long as the server runs.
pub(crate) struct SessionSocket<B> {
    api: Api,
    service: Service,
    /// Begins a session on a connection.
    begin: B,
    places: Vec<Place>,
    watch: Watch,
    reopened: u64,
}

struct Place {
    location: Location,
    /// `None` while the socket cannot be created.
    listener: Option<Listener>,
    /// Whether another server has this place.
    is_taken: bool,
}

impl Opened {
    /// Listens at `location`, if that is possible now.
    pub fn at(location: Location) -> Opened {
        match location.bind() {
            Ok(listener) => Opened::Listening(listener),
            Err(error) => Opened::Failed(location, error),
        }
    }

    fn is_listening(&self) -> bool {
        matches!(self, Opened::Listening(_))
    }
}

impl<B: Fn(Connection, Open) + Clone + Send + Sync + 'static> SessionSocket<B> {
    /// The socket at these places. Failures were logged.
    pub(crate) fn new(api: Api, service: Service, begin: B, opened: Vec<Opened>) -> SessionSocket<B> {
        let places = opened.into_iter().map(|opened| match opened {
            Opened::Listening(listener) => {
                Place { location: listener.location().clone(), listener: Some(listener), is_taken: false }
            }
            Opened::Failed(location, error) => Place { location, listener: None, is_taken: is_taken(&error) },
        });
        let places: Vec<Place> = places.collect();
        let watch = Watch::new(places.iter().map(|place| place.location.path()));
        let mut socket = SessionSocket { api, service, begin, places, watch, reopened: 0 };
        for at in 0..socket.places.len() {
            socket.listen(at);
        }
        // A file may have been removed before it was watched.
        if socket.places.iter().any(Place::was_removed) {
            socket.recheck();
        }
        socket.note_metrics();
        socket
    }

    /// Creates the socket again each time that clients cannot find it. May be cancelled at any time.
    pub(crate) async fn keep(&mut self) {
        loop {
            if self.places.iter().all(Place::is_there) {
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
        if self.places.iter().all(Place::is_there) {
            return;
        }
        let made: Vec<bool> = self.places.iter_mut().map(Place::open_again).collect();
        self.watch = Watch::new(self.places.iter().map(|place| place.location.path()));
        for (at, _) in made.iter().enumerate().filter(|(_, is_new)| **is_new) {
            self.reopened += 1;
            // A new file may have been removed before it was watched. Then the next check finds that.
            self.listen(at);
        }
    }

    /// Accepts the connections of the listener at a place. If no thread can be started for that, the socket is created again later.
    fn listen(&mut self, at: usize) {
        let Some(place) = self.places.get_mut(at) else { return };
        let Some(listener) = &place.listener else { return };
        if let Err(cause) = self.service.accept("session", Arc::clone(listener.socket()), None, self.begin.clone()) {
            log_failure(&BindError::System { path: place.location.path().to_owned(), cause });
            place.listener = None;
        }
    }

    fn note_metrics(&mut self) {
        let is_up = is_up(self.places.iter().map(|place| (place.listener.is_some(), place.is_taken)));
        self.api.note_session_socket(SessionSocketMetrics { is_up, reopened: self.reopened });
    }
}

impl<B> Drop for SessionSocket<B> {
    fn drop(&mut self) {
        self.api.note_session_socket(SessionSocketMetrics { is_up: false, reopened: self.reopened });
    }
}

impl Place {
    /// Whether clients find the socket.
    fn is_there(&self) -> bool {
        self.listener.as_ref().is_some_and(Listener::is_there)
    }

    /// Whether there was a socket, and clients do not find it any more.
    fn was_removed(&self) -> bool {
        self.listener.as_ref().is_some_and(|listener| !listener.is_there())
    }

    /// Creates the socket if clients do not find it. Returns whether there is a new one.
    fn open_again(&mut self) -> bool {
        if self.is_there() {
            return false;
        }
        let path = self.location.path();
        let old = self.listener.take();
        if let Some(old) = &old {
            log::warn!("session socket '{}' was removed or replaced; it is made anew", path.display());
            // Connections to the old file are still accepted.
            old.socket().drain();
        }
        match self.location.bind() {
            Ok(listener) => {
                log::info!("Started sessions at {}", path.display());
                (self.listener, self.is_taken) = (Some(listener), false);
                true
            }
            Err(error) => {
                if old.is_some() {
                    log_failure(&error);
                }
                self.is_taken = is_taken(&error);
                false
            }
        }
    }
}

/// Whether clients find the server. Each place says whether the server listens there, and whether another server does. One place of the server's own is
/// enough if other servers have the others. A place that cannot be used for another reason is a fault.
fn is_up(places: impl Iterator<Item = (bool, bool)> + Clone) -> bool {
    places.clone().any(|(listens, _)| listens) && places.clone().all(|(listens, is_taken)| listens || is_taken)
}

fn is_taken(error: &BindError) -> bool {
    matches!(error, BindError::InUse(_))
}

/// Logs which places could not be opened at the start, and why. If another server of this user has a place and clients find this server elsewhere, that is no
/// fault.
pub fn log_failures(opened: &[Opened]) {
    let elsewhere = opened.iter().find_map(|one| match one {
        Opened::Listening(listener) => Some(listener.path()),
        Opened::Failed(..) => None,
    });
    for one in opened.iter().filter(|one| !one.is_listening()) {
        match (one, elsewhere) {
            (Opened::Failed(_, error), Some(path)) if is_taken(error) => {
                log::info!(
                    "{error}; clients that name this server's HTTP port find its sessions at {}",
                    path.display()
                );
            }
            (Opened::Failed(_, error), _) => log_failure(error),
            (Opened::Listening(_), _) => {}
        }
    }
}

/// Logs that there are no sessions at a place, and why. If another server of this user has it, that is a warning. Everything else is an error.
fn log_failure(error: &BindError) {
    let level = if is_taken(error) { log::Level::Warn } else { log::Level::Error };
    log::log!(
        level,
        "no sessions (nerite_session_socket_up is 0): {error}; --session-socket=<path> puts the socket elsewhere. It is tried \
         again every {RECHECK_AFTER:?}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_found_if_it_has_a_place_and_other_servers_have_the_rest() {
        let (listens, taken, faulty) = ((true, false), (false, true), (false, false));
        for (places, expect) in [
            (&[listens][..], true),
            (&[listens, listens], true),
            (&[taken, listens], true),
            (&[listens, taken], true),
            (&[taken], false),
            (&[taken, taken], false),
            (&[faulty, listens], false),
            (&[listens, faulty], false),
            (&[faulty], false),
            (&[], false),
        ] {
            assert_eq!(is_up(places.iter().copied()), expect, "{places:?}");
        }
    }
}
