//! Which requests of an instance has the backend not given back?

use std::sync::{Arc, Condvar, PoisonError};
use std::time::Duration;

use nerite_locks::Mutex;

/// Counts the requests of one instance of which the backend still has something: the request, a response, an output or a factory.
#[derive(Default)]
pub struct Outstanding {
    count: Mutex<usize>,
    none: Condvar,
}

/// One of them, as long as this lives.
pub struct Counted(Arc<Outstanding>);

impl Outstanding {
    /// The backend gets one more.
    pub fn add(self: &Arc<Self>) -> Counted {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Counted(Arc::clone(self))
    }

    /// Waits until there is none, no longer than this. How many are left.
    pub fn wait(&self, longest: Duration) -> usize {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *self.none.wait_timeout_while(count, longest, |count| *count > 0).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut count = self.0.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count -= 1;
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_hears_of_the_last_or_of_those_that_are_left() {
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
