//! What may a thread not do while it asks a batching strategy?
//!
//! No batch of the strategy's model forms meanwhile. What waits for a request of that model, or for somebody who does, would wait for ever.

use std::cell::Cell;

use crate::fault::Fault;

thread_local! {
    /// Whether this thread is in a function of a strategy.
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function of a strategy.
pub fn asking<T>(call: impl FnOnce() -> T) -> T {
    let before = ASKING.replace(true);
    let done = call();
    ASKING.set(before);
    done
}

/// Refuses what a strategy must not do.
pub fn check_not_asking(what: &str) -> Result<(), Fault> {
    if ASKING.get() {
        return Err(Fault::misuse(format!("a batching strategy may look at requests and must not {what}")));
    }
    Ok(())
}
