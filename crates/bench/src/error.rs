//! Why can nothing be measured?

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// The command line is not understood; the text ends with how it is meant.
    #[error("{0}")]
    Usage(String),
    /// A call that prepares the load failed.
    #[error("{0}")]
    Client(#[from] nerite_client::Error),
    /// The server cannot be reached, or its connection broke.
    #[error("{what}: {reason}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        reason: std::io::Error,
    },
    /// The server answered something else than a success.
    #[error("the server answered: {0}")]
    Refused(String),
    /// The server said yes, but its result is not there.
    #[error("the output region was not written")]
    NotWritten,
}

/// Adds to a system's error what was tried.
pub(crate) fn tried(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> BenchError {
    let what = what.into();
    |reason| BenchError::System { what, reason }
}
