//! Has the client stopped caring?

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;

/// One request's flag, shared by whoever may cancel it and whoever may want to know.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<State>);

/// The bit of a flag that is set.
const CANCELLED: u8 = 1;
/// The bit of a flag of which somebody wants to be told. It stays.
const WATCHED: u8 = 2;

#[derive(Default)]
struct State {
    bits: AtomicU8,
    /// Locked only for a flag that is watched: most requests end without anybody having asked.
    on_cancelled: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancel").field(&(self.bits.load(Ordering::Relaxed) & CANCELLED != 0)).finish()
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
        // Whoever watches from now on sees the flag; whoever watched before is seen here.
        if self.0.bits.fetch_or(CANCELLED, Ordering::AcqRel) & WATCHED == 0 {
            return;
        }
        // Called without the lock, because it may want to be told of something else.
        let told = self.0.on_cancelled().take();
        if let Some(told) = told {
            told();
        }
    }

    /// Whether the flag is set.
    pub fn is_cancelled(&self) -> bool {
        self.0.bits.load(Ordering::Acquire) & CANCELLED != 0
    }

    /// Has `told` called when the flag is set, on the thread that sets it; only the last one given is called. False: the flag is set
    /// already, and nothing will be called.
    pub fn on_cancelled(&self, told: impl FnOnce() + Send + 'static) -> bool {
        let mut known = self.0.on_cancelled();
        // Whoever sets the flag after this takes the lock, and so waits for what is put here.
        if self.0.bits.fetch_or(WATCHED, Ordering::AcqRel) & CANCELLED != 0 {
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
