//! If another process does an instance's work, how is its answer awaited without a thread?
//!
//! Front threads wait for their sockets anyway. The front end says once how they do it ([`watch_by`]). Then they also wait for the socket of a
//! model's process, and its answer wakes the thread that passes it to the client.

use std::sync::{Arc, OnceLock};

use nerite_backend::Awaited;

/// Lets front threads wait for more than their sockets.
pub trait Watch: Send + Sync {
    /// Whether the calling thread is a front thread.
    fn is_here(&self) -> bool;

    /// Lets front threads wait for one instance.
    fn waiter(&self) -> Arc<dyn Waiter>;
}

/// Lets front threads wait for the descriptors of one instance, one after the other.
pub trait Waiter: Send + Sync {
    /// Makes a front thread call `then` once `what` is readable. If that is impossible, `then` is dropped. Any thread may call this, and not again
    /// before `then` was called or dropped. The descriptor stays registered afterwards.
    fn when_readable(&self, what: Awaited, then: Box<dyn FnOnce() + Send>);

    /// Ends the registration, because another thread waits for the descriptor now. Otherwise front threads would be woken for nothing.
    fn release(&self);
}

static WATCH: OnceLock<Box<dyn Watch>> = OnceLock::new();

/// Sets how front threads wait for instances. Only the first call counts.
pub fn watch_by(watch: Box<dyn Watch>) {
    let _ = WATCH.set(watch);
}

/// The [`Watch`], if there are front threads.
pub(crate) fn watch() -> Option<&'static dyn Watch> {
    WATCH.get().map(Box::as_ref)
}

/// The [`Watch`], if the calling thread is a front thread.
pub(crate) fn watch_here() -> Option<&'static dyn Watch> {
    watch().filter(|watch| watch.is_here())
}
