//! Was a request cancelled?

use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;

/// The most flags that a thread keeps for reuse after their requests ended. Few are enough, because a thread that serves connections ends most requests
/// before it reads others.
const SPARE_MAX: usize = 4;

thread_local! {
    /// Flags that no request has. None of them is set or watched.
    static SPARE: RefCell<Vec<Arc<State>>> = const { RefCell::new(Vec::new()) };
}

/// One request's flag, shared by all code that may cancel the request or wait for its cancellation.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<State>);

/// The bit of a flag that is set.
const CANCELLED: u8 = 1;
/// The bit of a flag that was set because the request had taken too long.
const TIMED_OUT: u8 = 4;
/// The bit of a flag with a callback. It is never cleared.
const WATCHED: u8 = 2;

#[derive(Default)]
struct State {
    bits: AtomicU8,
    /// Locked only for a flag with a callback. Most requests end without a callback.
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
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
        Cancel(spare.unwrap_or_default())
    }

    /// Sets the flag permanently, and calls the callback. A request that waits is answered before this returns, so the
    /// caller must not hold a lock that its answer takes.
    pub fn cancel(&self) {
        self.set(CANCELLED);
    }

    /// As [`Cancel::cancel`], for a request whose timeout is over. Its client still waits, and gets the error of a timeout.
    pub fn time_out(&self) {
        self.set(CANCELLED | TIMED_OUT);
    }

    fn set(&self, bits: u8) {
        // The callback is called without the lock, because it may set a callback of another flag.
        if let Some(callback) = self.mark(bits) {
            callback();
        }
    }

    /// As [`Cancel::cancel`], but the caller calls the returned callback itself, on any thread. If the caller drops the callback instead, the request ends
    /// when its turn comes.
    pub fn begin_cancel(&self) -> Option<Box<dyn FnOnce() + Send>> {
        self.mark(CANCELLED)
    }

    /// Sets the bits. Returns the callback if this is the first time.
    fn mark(&self, bits: u8) -> Option<Box<dyn FnOnce() + Send>> {
        // If the callback was set before this line, the bit WATCHED shows it. If it is set later, `on_cancelled` sees that the flag is set.
        if self.0.bits.fetch_or(bits, Ordering::AcqRel) & WATCHED == 0 {
            return None;
        }
        self.0.on_cancelled().take()
    }

    /// Whether the flag is set.
    pub fn is_cancelled(&self) -> bool {
        self.0.bits.load(Ordering::Acquire) & CANCELLED != 0
    }

    /// Whether [`Cancel::time_out`] set it.
    pub fn has_timed_out(&self) -> bool {
        self.0.bits.load(Ordering::Acquire) & TIMED_OUT != 0
    }

    /// Sets a callback that is called when the flag is set, on the thread that sets it. It replaces an earlier callback. Returns
    /// false if the flag is set already: then nothing will be called.
    pub fn on_cancelled(&self, callback: impl FnOnce() + Send + 'static) -> bool {
        let mut known = self.0.on_cancelled();
        // A thread that sets the flag from now on sees WATCHED and takes the lock, so it waits until the callback is stored.
        if self.0.bits.fetch_or(WATCHED, Ordering::AcqRel) & CANCELLED != 0 {
            return false;
        }
        *known = Some(Box::new(callback));
        true
    }
}

impl Default for Cancel {
    fn default() -> Cancel {
        Cancel::new()
    }
}

impl Drop for Cancel {
    /// The last owner of the flag keeps it for another request.
    fn drop(&mut self) {
        // This check is cheaper than `get_mut`. If two owners drop the flag at once, both may see a count above 1. Then the flag is freed and not reused.
        if Arc::strong_count(&self.0) > 1 {
            return;
        }
        let Some(state) = Arc::get_mut(&mut self.0) else { return };
        // The callback is dropped before the list is borrowed, because it may hold another flag, whose drop borrows the list.
        drop(std::mem::take(state));
        // A thread that is ending keeps no flags.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARE_MAX {
                spare.push(Arc::clone(&self.0));
            }
        });
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
    fn who_wants_to_know_is_notified_once() {
        let (cancel, calls) = (Cancel::new(), Arc::new(AtomicUsize::new(0)));
        let count_calls = |calls: &Arc<AtomicUsize>| {
            let calls = Arc::clone(calls);
            move || {
                calls.fetch_add(1, Ordering::SeqCst);
            }
        };
        assert!(
            cancel.on_cancelled(|| panic!("another one was given later")) && cancel.on_cancelled(count_calls(&calls))
        );
        let other = cancel.clone();
        assert!(!cancel.is_cancelled());
        other.cancel();
        other.cancel();
        assert!(cancel.is_cancelled() && !cancel.on_cancelled(count_calls(&calls)));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_flag_that_is_used_again_is_another_requests() {
        let (cancel, dropped) = (Cancel::new(), Arc::new(()));
        let (held, state) = (Arc::clone(&dropped), Arc::as_ptr(&cancel.0));
        cancel.on_cancelled(move || drop(held));
        cancel.cancel();
        let kept = cancel.clone();
        drop(cancel);
        assert!(!std::ptr::eq(Arc::as_ptr(&Cancel::new().0), state), "somebody else has it");
        drop(kept);
        let next = Cancel::new();
        assert!(std::ptr::eq(Arc::as_ptr(&next.0), state) && !next.is_cancelled());
        next.cancel();
        assert!(!next.on_cancelled(|| panic!("it was cancelled before")));
        let watched = Cancel::new();
        let held = Arc::clone(&dropped);
        assert!(watched.on_cancelled(move || drop(held)));
        drop((next, watched));
        assert_eq!(Arc::strong_count(&dropped), 1, "what was to be told is dropped with the last one who has the flag");
        let all: Vec<Cancel> = (0..10 * SPARE_MAX).map(|_| Cancel::new()).collect();
        drop(all);
        assert_eq!(SPARE.with_borrow(Vec::len), SPARE_MAX);
    }

    #[test]
    fn the_caller_may_have_another_thread_notify() {
        let (cancel, calls) = (Cancel::new(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&calls);
        assert!(cancel.on_cancelled(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        }));
        let notify = cancel.begin_cancel();
        assert!(cancel.is_cancelled() && calls.load(Ordering::SeqCst) == 0);
        cancel.cancel();
        assert_eq!(calls.load(Ordering::SeqCst), 0, "who cancelled first tells");
        if let Some(notify) = notify {
            notify();
        }
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_timeout_cancels_and_is_distinguished() {
        let (gone, late, both) = (Cancel::new(), Cancel::new(), Cancel::new());
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        assert!(late.on_cancelled(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        }));
        gone.cancel();
        late.time_out();
        both.cancel();
        both.time_out();
        let state = |cancel: &Cancel| (cancel.is_cancelled(), cancel.has_timed_out());
        assert_eq!(
            [&gone, &late, &both, &Cancel::new()].map(state),
            [(true, false), (true, true), (true, true), (false, false)]
        );
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
