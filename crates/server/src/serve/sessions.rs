//! How does the session socket come to be?

use nerite_api::Api;
use nerite_session::{BindError, Handle, Listener, Options, raise_descriptor_limit, serve};

use super::StartError;
use crate::settings::{SessionSocket, Sessions};

/// Opens the socket. At the default place a server that finds it taken, or cannot make it, does without: nobody asked for it
/// by name.
pub fn open(settings: &Sessions) -> Result<Option<Listener>, StartError> {
    let others = !settings.allow_uids.is_empty();
    let listener = match &settings.socket {
        SessionSocket::Off => return Ok(None),
        SessionSocket::At(path) => Listener::bind(path, others).map_err(|error| not_started(&error))?,
        SessionSocket::Default => match Listener::bind_default() {
            Ok(listener) => listener,
            Err(error) => {
                log::warn!("no sessions: {error}; --session-socket=<path> would put the socket elsewhere");
                return Ok(None);
            }
        },
    };
    if others && settings.socket == SessionSocket::Default {
        let path = listener.path().display();
        log::warn!("other users cannot reach {path}; give --session-socket a directory that they can enter");
    }
    Ok(Some(listener))
}

/// Serves who connects to it.
pub fn start(api: &Api, settings: &Sessions, listener: Listener) -> Handle {
    raise_descriptor_limit();
    log::info!("Started sessions at {}", listener.path().display());
    serve(api.clone(), Options { allow_uids: settings.allow_uids.clone() }, listener)
}

fn not_started(error: &BindError) -> StartError {
    StartError(format!("failed to start session service: Unavailable - {error}"))
}
