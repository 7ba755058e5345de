//! How does a write past the limit of file sizes become an error?
//!
//! Linux fails such a write with EFBIG, and sends the thread SIGXFSZ as well, which ends a process that does not handle it. The limit is that of
//! `ulimit -f`, `LimitFSIZE` of systemd, or a sandbox.

use tokio::signal::unix::SignalKind;

/// The signal. Once tokio receives it, the error is all that is left: the handler stays for the life of the process, and nobody needs to wait for the signal.
/// Programs that the process starts do not inherit the handler. Python ignores the signal by itself.
pub fn file_too_large() -> SignalKind {
    SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw())
}
