//! Has the client stopped caring?

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;

/// One request's flag, shared by whoever may cancel it and whoever may want to know.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<State>);

#[derive(Default)]
struct State {
    is_cancelled: AtomicBool,
    on_cancelled: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancel").field(&self.is_cancelled).finish()
    }
}

impl Cancel {
    /// A flag that is not set.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Sets the flag, for good, and tells whoever wanted to know. A request that waits is answered before this returns, so the caller
    /// must not hold a lock that its answer takes.
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Release);
        // Called without the lock, because it may want to be told of something else.
        let told = self.0.on_cancelled().take();
        if let Some(told) = told {
            told();
        }
    }

    /// Whether the flag is set.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Acquire)
    }

    /// Has `told` called when the flag is set, on the thread that sets it; only the last one given is called. False: the flag is set
    /// already, and nothing will be called.
    pub fn on_cancelled(&self, told: impl FnOnce() + Send + 'static) -> bool {
        let mut known = self.0.on_cancelled();
        // Whoever sets the flag looks here afterwards.
        if self.is_cancelled() {
            return false;
        }
        *known = Some(Box::new(told));
        true
    }
}

impl State {
    fn on_cancelled(&self) -> MutexGuard<'_, Option<Box<dyn FnOnce() + Send>>> {
        self.on_cancelled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn who_wants_to_know_is_told_once() {
        let (cancel, calls) = (Cancel::new(), Arc::new(AtomicUsize::new(0)));
        let told = |calls: &Arc<AtomicUsize>| {
            let calls = Arc::clone(calls);
            move || {
                calls.fetch_add(1, Ordering::SeqCst);
            }
        };
        assert!(cancel.on_cancelled(|| panic!("another one was given later")) && cancel.on_cancelled(told(&calls)));
        let other = cancel.clone();
        assert!(!cancel.is_cancelled());
        other.cancel();
        other.cancel();
        assert!(cancel.is_cancelled() && !cancel.on_cancelled(told(&calls)));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn who_asks_while_it_is_cancelled_is_told_or_knows() {
        for _ in 0..1000 {
            let (cancel, calls) = (Cancel::new(), Arc::new(AtomicUsize::new(0)));
            let counted = Arc::clone(&calls);
            let waits = std::thread::scope(|scope| {
                scope.spawn(|| cancel.cancel());
                cancel.on_cancelled(move || {
                    counted.fetch_add(1, Ordering::SeqCst);
                })
            });
            assert_eq!(calls.load(Ordering::SeqCst), usize::from(waits));
        }
    }
}
