//! What does SIGHUP do if the log goes to a file?
//!
//! It opens the file anew, as `logrotate` and service managers expect. This also holds under `nohup`, and while the models load.

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use super::StartError;
use super::signals::unreceived;
use crate::logger;

/// From now on, SIGHUP opens the log file anew. `path` names the file in the log.
pub(super) fn reopen_log(path: String) -> Result<(), StartError> {
    let runtime = Builder::new_current_thread().enable_io().build().map_err(unreceived)?;
    let context = runtime.enter();
    let mut hangup = signal(SignalKind::hangup()).map_err(unreceived)?;
    drop(context);
    let reopen = async move {
        while hangup.recv().await.is_some() {
            match logger::reopen() {
                Ok(()) => log::info!("Signal (1) received: the log file '{path}' was opened anew."),
                Err(error) => log::warn!(
                    "Signal (1) received: the log file '{path}' cannot be opened: {error}; lines go on to the file so far."
                ),
            }
        }
    };
    // A thread of its own, because the front ends have none while the models load.
    let thread = std::thread::Builder::new().name("nerite-hangup".to_owned());
    thread.spawn(move || runtime.block_on(reopen)).map(drop).map_err(unreceived)
}
