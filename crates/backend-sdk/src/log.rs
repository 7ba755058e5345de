//! How does a backend write to the server's log?

use std::panic::Location;

use crate::error::Error;
use crate::interface as raw;
use crate::text::to_c;

/// The level of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Level {
    /// For information.
    Info = 0,
    /// Something that the operator should check.
    Warn = 1,
    /// A failure.
    Error = 2,
    /// Shown only with verbose logging.
    Verbose = 3,
}

/// Writes a line to the server's log, with the caller's file and line.
#[track_caller]
pub fn log(level: Level, text: &str) {
    let place = Location::caller();
    let (file, text) = (to_c(place.file()), to_c(text));
    // SAFETY: both texts end with a zero and live during the call.
    let written =
        unsafe { raw::TRITONSERVER_LogMessage(level as u32, file.as_ptr(), place.line() as i32, text.as_ptr()) };
    // If the log cannot be written, the error cannot be reported anywhere.
    written.delete();
}

/// Logs a failure that cannot be reported to a client.
#[track_caller]
pub(crate) fn log_failure(what: &str, done: Result<(), Error>) {
    if let Err(error) = done {
        log(Level::Error, &format!("{what}: {error}"));
    }
}
