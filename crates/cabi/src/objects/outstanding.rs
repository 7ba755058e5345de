//! How many requests of an instance has the backend not released?

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, PoisonError};
use std::time::Duration;

use nerite_locks::Mutex;

/// Counts the requests of one instance of which the backend still holds an object: the request, a response, an output or a factory.
///
/// A request takes no lock to be counted, unless an instance is ending. All accesses are sequentially consistent: of the thread that ends the last
/// request and the thread that waits, at least one sees the other.
#[derive(Default)]
pub struct Outstanding {
    count: AtomicUsize,
    /// Whether a thread waits for the last one.
    is_awaited: AtomicBool,
    ending: Mutex<()>,
    none: Condvar,
}

/// Counts one request, until it is dropped.
pub struct Counted(Arc<Outstanding>);

impl Outstanding {
    /// Counts one more request.
    pub fn add(self: &Arc<Self>) -> Counted {
        self.count.fetch_add(1, Ordering::SeqCst);
        Counted(Arc::clone(self))
    }

    /// Waits until there are none, for at most this time. Returns how many are left.
    pub fn wait(&self, longest: Duration) -> usize {
        self.is_awaited.store(true, Ordering::SeqCst);
        let ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        let some = |(): &mut ()| self.count.load(Ordering::SeqCst) > 0;
        drop(self.none.wait_timeout_while(ending, longest, some).unwrap_or_else(PoisonError::into_inner));
        self.count.load(Ordering::SeqCst)
    }
}

impl Counted {
    /// Whether it is counted there.
    pub fn is_in(&self, outstanding: &Arc<Outstanding>) -> bool {
        Arc::ptr_eq(&self.0, outstanding)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 && self.0.is_awaited.load(Ordering::SeqCst) {
            // A waiting thread holds this lock from its read of the count until it sleeps.
            drop(self.0.ending.lock().unwrap_or_else(PoisonError::into_inner));
            self.0.none.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_last_request_or_returns_the_number_left() {
        let outstanding = Arc::new(Outstanding::default());
        assert_eq!(outstanding.wait(Duration::ZERO), 0);
        let (first, second) = (outstanding.add(), outstanding.add());
        assert_eq!(outstanding.wait(Duration::from_millis(20)), 2);
        drop(first);
        std::thread::scope(|scope| {
            scope.spawn(|| drop(second));
            assert_eq!(outstanding.wait(Duration::from_mins(1)), 0);
        });
    }
}
