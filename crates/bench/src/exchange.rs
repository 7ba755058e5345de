//! What can a connection do, whatever its protocol?

use std::io;

/// A connection that can do one request and its answer.
pub(crate) trait Exchange {
    /// Sends the request and skips the answer. An answer without success is an error.
    fn once(&mut self) -> io::Result<()>;
}
