//! Which requests must not run on the thread that submits them?
//!
//! A request that is known to be quick runs on the thread that submits it. A compiled backend that calls another model may hold a lock that the
//! answer takes as well. So its requests run on another thread.

use std::cell::Cell;

thread_local! {
    static IS_ELSEWHERE: Cell<bool> = const { Cell::new(false) };
}

/// Does `work`. The requests that it brings run on other threads.
pub fn elsewhere<T>(work: impl FnOnce() -> T) -> T {
    let scope = Scope(IS_ELSEWHERE.replace(true));
    let done = work();
    drop(scope);
    done
}

/// Whether a request that this thread brings must run on another one.
pub fn is_elsewhere() -> bool {
    IS_ELSEWHERE.get()
}

/// Restores the previous state, also if the work panics.
struct Scope(bool);

impl Drop for Scope {
    fn drop(&mut self) {
        IS_ELSEWHERE.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_with_the_work() {
        assert!(!is_elsewhere());
        assert!(elsewhere(|| elsewhere(is_elsewhere) && is_elsewhere()));
        assert!(!is_elsewhere());
    }
}
