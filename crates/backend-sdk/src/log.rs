//! How does a backend write to the server's log?

use std::panic::Location;

use crate::error::Error;
use crate::interface as raw;
use crate::text::to_c;

/// How much a line of the log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Level {
    /// What an operator wants to know.
    Info = 0,
    /// What an operator should look at.
    Warn = 1,
    /// What failed.
    Error = 2,
    /// What is shown if the operator asks for it.
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
    // There is nobody to tell that nothing can be told.
    written.delete();
}

/// A failure that nobody can be told of but the operator.
#[track_caller]
pub(crate) fn log_failure(what: &str, done: Result<(), Error>) {
    if let Err(error) = done {
        log(Level::Error, &format!("{what}: {error}"));
    }
}
