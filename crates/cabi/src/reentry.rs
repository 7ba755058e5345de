//! What is a thread not allowed to do while it calls a batching strategy?
//!
//! Meanwhile no batch of the strategy's model forms. A call that waits for a request of that model, directly or
//! indirectly, would wait forever.

use std::cell::Cell;

use crate::fault::Fault;

thread_local! {
    /// Whether this thread is in a function of a strategy.
    static IN_STRATEGY: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function of a strategy.
pub fn calling_strategy<T>(call: impl FnOnce() -> T) -> T {
    let before = IN_STRATEGY.replace(true);
    let done = call();
    IN_STRATEGY.set(before);
    done
}

/// Refuses a call that a strategy must not make.
pub fn check_not_in_strategy(what: &str) -> Result<(), Fault> {
    if IN_STRATEGY.get() {
        return Err(Fault::misuse(format!("a batching strategy may look at requests and must not {what}")));
    }
    Ok(())
}
