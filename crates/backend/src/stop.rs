//! How is a run ended early when no client waits for it any more?

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_request::Cancel;

type Stop = Box<dyn FnOnce() + Send>;

/// Decides when the server ends a request whose client has gone, if the request may run on for some time. It lives as long as the request.
pub trait EarlyEnd: std::fmt::Debug + Send + Sync {
    /// The flag that is set when the server ends the request.
    fn stop(&self) -> &Cancel;
}

/// Ends a run whose clients have all gone. After the guard is dropped, the run is not stopped any more.
pub struct StopGuard(Option<Arc<Watch>>);

struct Watch {
    /// The number of requests that were not cancelled.
    left: AtomicUsize,
    stop: Mutex<Option<Stop>>,
    is_stopped: AtomicBool,
}

impl StopGuard {
    /// The guard of a run that is too short to be stopped.
    pub(crate) fn none() -> StopGuard {
        StopGuard(None)
    }

    /// Calls `stop` once, when all of these are cancelled.
    pub(crate) fn over<'c>(cancels: impl ExactSizeIterator<Item = &'c Cancel>, stop: Stop) -> StopGuard {
        let left = AtomicUsize::new(cancels.len());
        let watch = Arc::new(Watch { left, stop: Mutex::new(Some(stop)), is_stopped: AtomicBool::new(false) });
        for cancel in cancels {
            let gone = Arc::clone(&watch);
            if !cancel.on_cancelled(move || gone.one_has_gone()) {
                watch.one_has_gone();
            }
        }
        StopGuard(Some(watch))
    }

    /// Whether the run was told to end early.
    pub fn is_stopped(&self) -> bool {
        self.0.as_ref().is_some_and(|watch| watch.is_stopped.load(Ordering::Acquire))
    }

    /// Ends the watch when the run is over. `stop` is not called after this. Returns whether it was called before.
    pub fn end(mut self) -> bool {
        // The watch is taken out of the guard, so that dropping the guard does not lock it again.
        self.0.take().is_some_and(|watch| {
            watch.forget();
            watch.is_stopped.load(Ordering::Acquire)
        })
    }
}

impl Drop for StopGuard {
    fn drop(&mut self) {
        if let Some(watch) = self.0.take() {
            watch.forget();
        }
    }
}

impl Watch {
    fn one_has_gone(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let mut stop = self.lock();
        if let Some(stop) = stop.take() {
            self.is_stopped.store(true, Ordering::Release);
            stop();
        }
    }

    /// Prevents later calls of `stop`. Waits for a call that is under way, because that call holds the lock.
    fn forget(&self) {
        drop(self.lock().take());
    }

    fn lock(&self) -> MutexGuard<'_, Option<Stop>> {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting() -> (Arc<AtomicUsize>, Stop) {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let stop = move || {
            counted.fetch_add(1, Ordering::SeqCst);
        };
        (calls, Box::new(stop))
    }

    #[test]
    fn a_run_ends_when_the_last_of_its_clients_has_gone() {
        let cancels = [Cancel::new(), Cancel::new(), Cancel::new()];
        // One client had gone before the run began.
        cancels[1].cancel();
        let (calls, stop) = counting();
        let guard = StopGuard::over(cancels.iter(), stop);
        cancels[0].cancel();
        assert_eq!((calls.load(Ordering::SeqCst), guard.is_stopped()), (0, false));
        cancels[2].cancel();
        assert_eq!((calls.load(Ordering::SeqCst), guard.is_stopped()), (1, true));
    }

    #[test]
    fn who_goes_after_the_run_stops_nothing() {
        let cancel = Cancel::new();
        let (calls, stop) = counting();
        drop(StopGuard::over([&cancel].into_iter(), stop));
        cancel.cancel();
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        assert!(!StopGuard::none().is_stopped() && !StopGuard::none().end());
    }

    #[test]
    fn who_ends_the_watch_is_notified_of_a_client_that_went_since_the_run_was_over() {
        let cancels = [Cancel::new(), Cancel::new()];
        for (cancel, goes) in cancels.iter().zip([true, false]) {
            let (calls, stop) = counting();
            let guard = StopGuard::over([cancel].into_iter(), stop);
            assert!(!guard.is_stopped());
            if goes {
                cancel.cancel();
            }
            assert_eq!(guard.end(), goes);
            cancel.cancel();
            assert_eq!(calls.load(Ordering::SeqCst), usize::from(goes), "nobody is told after the end");
        }
    }
}
