//! Who waits for an instance whose work is done elsewhere, without a thread of its own?
//!
//! The front ends' threads wait for their sockets anyway. What runs them says so once ([`watch_by`]); the socket of a model's process is then
//! one more among those, and its answer wakes the thread that gives it to the client.

use std::sync::OnceLock;

use nerite_backend::Awaited;

/// What the front ends' threads wait by.
pub trait Watch: Send + Sync {
    /// Whether the calling thread is one of theirs.
    fn is_here(&self) -> bool;

    /// Has one of them call `then` once that is readable. Where that cannot be, `then` is dropped.
    fn when_readable(&self, what: Awaited, then: Box<dyn FnOnce() + Send>);
}

static WATCH: OnceLock<Box<dyn Watch>> = OnceLock::new();

/// From now on, front ends' threads wait for instances by this. The first one counts.
pub fn watch_by(watch: Box<dyn Watch>) {
    let _ = WATCH.set(watch);
}

/// What the calling thread can have watched, if it is one that waits for sockets.
pub(crate) fn watch_here() -> Option<&'static dyn Watch> {
    WATCH.get().map(Box::as_ref).filter(|watch| watch.is_here())
}
