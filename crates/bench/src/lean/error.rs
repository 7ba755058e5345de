//! Why can nothing be measured?

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// The command line is not understood. The text ends with the usage.
    #[error("{0}")]
    Usage(String),
    /// A call that prepares the load failed.
    #[error("{0}")]
    Client(#[from] nerite_client::Error),
    /// The server cannot be reached, or its connection broke.
    #[error("{what}: {reason}")]
    System {
        /// The operation that failed.
        what: String,
        /// The system's error.
        reason: std::io::Error,
    },
    /// The server answered something else than a success.
    #[error("the server answered: {0}")]
    Refused(String),
    /// The server answered with success, but the output does not hold the result.
    #[error("the output region was not written")]
    NotWritten,
}

/// Adds to a system's error what was tried.
pub(crate) fn tried(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> BenchError {
    let what = what.into();
    |reason| BenchError::System { what, reason }
}
