//! How is the session socket opened, and what happens if that fails?

use nerite_api::Api;
use nerite_session::{BindError, Handle, Listener, Location, Opened, Options, log_failures, serve_at};

use super::StartError;
use crate::settings::{SessionSocket, Sessions};

/// Opens the socket. If that fails at a default path, the server starts without it, because the operator did not ask for it. At the default place the
/// server has a socket of its own beside the one that only one server of the user can have, by the port of HTTP.
pub fn open(settings: &Sessions, http_port: Option<u16>) -> Result<Vec<Opened>, StartError> {
    let others = !settings.allow_uids.is_empty();
    match &settings.socket {
        SessionSocket::Off => return Ok(Vec::new()),
        SessionSocket::At(path) => {
            let listener = Listener::bind(path, others).map_err(|error| not_started(&error))?;
            return Ok(vec![Opened::Listening(listener)]);
        }
        SessionSocket::Default => {}
    }
    let locations = [Some(Location::default_of_user()), http_port.map(Location::of_http_port)];
    let locations: Vec<Location> = locations.into_iter().flatten().collect();
    if others && let Some(first) = locations.first() {
        let path = first.path().display();
        log::warn!("other users cannot reach {path}; give --session-socket a directory that they can enter");
    }
    let opened = locations.into_iter().map(Opened::at).collect::<Vec<_>>();
    log_failures(&opened);
    Ok(opened)
}

/// Serves the clients that connect to the socket. `None` if there is none.
pub fn start(api: &Api, settings: &Sessions, opened: Vec<Opened>) -> Option<Handle> {
    let Sessions { allow_uids, per_user_max, hello_within, .. } = settings;
    let options = Options { allow_uids: allow_uids.clone(), per_user_max: *per_user_max, hello_within: *hello_within };
    for one in &opened {
        if let Opened::Listening(listener) = one {
            log::info!("Started sessions at {}", listener.path().display());
        }
    }
    (!opened.is_empty()).then(|| serve_at(api.clone(), options, opened))
}

fn not_started(error: &BindError) -> StartError {
    StartError(format!("failed to start session service: Unavailable - {error}"))
}
