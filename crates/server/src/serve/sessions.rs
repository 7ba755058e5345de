//! How is the session socket opened, and what happens if that fails?

use nerite_api::Api;
use nerite_session::{BindError, Handle, Listener, Location, Options, log_failure, serve, serve_later};

use super::StartError;
use crate::settings::{SessionSocket, Sessions};

/// The session socket at the start.
pub enum Opened {
    /// Clients can connect to it.
    Listening(Listener),
    /// It could not be made, and is tried again while the server runs.
    Later(Location),
}

/// Opens the socket. If that fails at the default path, the server starts without it, because the operator did not ask for it.
pub fn open(settings: &Sessions) -> Result<Option<Opened>, StartError> {
    let others = !settings.allow_uids.is_empty();
    let location = match &settings.socket {
        SessionSocket::Off => return Ok(None),
        SessionSocket::At(path) => {
            let listener = Listener::bind(path, others).map_err(|error| not_started(&error))?;
            return Ok(Some(Opened::Listening(listener)));
        }
        SessionSocket::Default => Location::default_of_user(),
    };
    if others {
        let path = location.path().display();
        log::warn!("other users cannot reach {path}; give --session-socket a directory that they can enter");
    }
    Ok(Some(match location.bind() {
        Ok(listener) => Opened::Listening(listener),
        Err(error) => {
            log_failure(&error);
            Opened::Later(location)
        }
    }))
}

/// Serves the clients that connect to the socket.
pub fn start(api: &Api, settings: &Sessions, opened: Opened) -> Handle {
    let Sessions { allow_uids, per_user_max, hello_within, .. } = settings;
    let options = Options { allow_uids: allow_uids.clone(), per_user_max: *per_user_max, hello_within: *hello_within };
    match opened {
        Opened::Listening(listener) => {
            log::info!("Started sessions at {}", listener.path().display());
            serve(api.clone(), options, listener)
        }
        Opened::Later(location) => serve_later(api.clone(), options, location),
    }
}

fn not_started(error: &BindError) -> StartError {
    StartError(format!("failed to start session service: Unavailable - {error}"))
}
