//! Which requests must not run on the thread that submits them?
//!
//! A request that is known to be quick runs on the thread that submits it. A compiled backend that calls another model may hold a lock, and its
//! callback for the answer may take the same lock. So its requests run on another thread.

use std::cell::Cell;

thread_local! {
    static ON_OTHER_THREADS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`. The requests that `work` submits run on other threads.
pub fn requests_on_other_threads<T>(work: impl FnOnce() -> T) -> T {
    let scope = Scope(ON_OTHER_THREADS.replace(true));
    let done = work();
    drop(scope);
    done
}

/// Whether a request that this thread submits must run on another thread.
pub fn must_run_on_other_thread() -> bool {
    ON_OTHER_THREADS.get()
}

/// Restores the previous state, also if the work panics.
struct Scope(bool);

impl Drop for Scope {
    fn drop(&mut self) {
        ON_OTHER_THREADS.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_with_the_work() {
        assert!(!must_run_on_other_thread());
        assert!(requests_on_other_threads(
            || requests_on_other_threads(must_run_on_other_thread) && must_run_on_other_thread()
        ));
        assert!(!must_run_on_other_thread());
    }
}
