//! How many responses of one request may wait for its client?
//!
//! A model that answers many times may be faster than its client reads. Each of its responses holds a permit until the
//! client's connection has taken it. When too many permits are held, the model waits. Other requests do not.
//!
//! Each step of an ensemble has a window of its own within that of the ensemble's client. A response to a step has a
//! permit of the step's window only. So a step waits for the steps after it and for the client, and never for a step
//! before it.

use std::fmt;
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;

use crate::limits::{WINDOW_BYTES_MAX, WINDOW_RESPONSES_MAX};

/// The responses of one request that were made and not taken yet.
#[derive(Default)]
pub struct ResponseWindow {
    state: Mutex<State>,
    /// A window that must have room as well.
    outer: Option<Arc<ResponseWindow>>,
}

#[derive(Default)]
struct State {
    responses: usize,
    bytes: usize,
    waiting: Vec<Callback>,
}

/// Called once when there is room.
type Callback = Box<dyn FnOnce() + Send>;

/// The right of one response to a place in its window, until it is dropped.
pub struct ResponsePermit {
    window: Arc<ResponseWindow>,
    bytes: usize,
}

impl ResponseWindow {
    /// An empty window.
    pub fn new() -> Arc<ResponseWindow> {
        Arc::default()
    }

    /// An empty window for a step of the request whose window is `outer`. Its responses have no permit there.
    pub fn within(outer: Option<Arc<ResponseWindow>>) -> Arc<ResponseWindow> {
        Arc::new(ResponseWindow { outer, ..ResponseWindow::default() })
    }

    /// A permit for a response of this many bytes. It is given even if the window is full, because a model waits for room before it makes a response.
    pub fn permit(self: &Arc<Self>, bytes: usize) -> Arc<ResponsePermit> {
        let mut state = self.lock();
        state.responses += 1;
        state.bytes += bytes;
        Arc::new(ResponsePermit { window: Arc::clone(self), bytes })
    }

    /// Sets a callback for when there is room for another response. It is called on the thread that made the room. All callbacks are called, and each
    /// must ask again, because another response may have filled the window first, or the outer window may be full. Returns false if there is room
    /// now: then nothing will be called.
    pub fn on_room(&self, callback: impl FnOnce() + Send + 'static) -> bool {
        self.wait(Box::new(callback))
    }

    fn wait(&self, callback: Callback) -> bool {
        let mut state = self.lock();
        if !state.has_room() {
            state.waiting.push(callback);
            return true;
        }
        drop(state);
        self.outer.as_ref().is_some_and(|outer| outer.wait(callback))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has_room(&self) -> bool {
        self.responses < WINDOW_RESPONSES_MAX && self.bytes < WINDOW_BYTES_MAX
    }
}

impl Drop for ResponsePermit {
    fn drop(&mut self) {
        let callbacks = {
            let mut state = self.window.lock();
            state.responses -= 1;
            state.bytes -= self.bytes;
            if state.has_room() { std::mem::take(&mut state.waiting) } else { Vec::new() }
        };
        // Called without the lock, because the callbacks may ask the window.
        for callback in callbacks {
            callback();
        }
    }
}

impl fmt::Debug for ResponseWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        write!(f, "ResponseWindow({} responses, {} bytes)", state.responses, state.bytes)
    }
}

impl fmt::Debug for ResponsePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResponsePermit({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Takes permits for responses of these sizes, asks for room, and gives the permits back one by one. `waits` says
    /// after how many of them the callback is called; `None` if there was room at once.
    #[track_caller]
    fn check(responses: &[usize], waits: Option<usize>) {
        let window = ResponseWindow::new();
        let mut permits: Vec<_> = responses.iter().map(|bytes| window.permit(*bytes)).collect();
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let is_full = window.on_room(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        let mut dropped = 0;
        while calls.load(Ordering::SeqCst) == 0 && permits.pop().is_some() {
            dropped += 1;
        }
        assert_eq!(is_full.then_some(dropped), waits, "{responses:?}");
        drop(permits);
        assert_eq!(calls.load(Ordering::SeqCst), usize::from(is_full), "it is told once");
    }

    #[test]
    fn who_waits_for_room_is_notified_once_there_is_some() {
        check(&[], None);
        check(&[0; WINDOW_RESPONSES_MAX - 1], None);
        check(&[0; WINDOW_RESPONSES_MAX], Some(1));
        check(&[0; WINDOW_RESPONSES_MAX + 3], Some(4));
        check(&[WINDOW_BYTES_MAX - 1], None);
        check(&[WINDOW_BYTES_MAX], Some(1));
        check(&[WINDOW_BYTES_MAX * 2, 1, 1], Some(3));
    }

    #[test]
    fn all_who_wait_are_notified() {
        let window = ResponseWindow::new();
        let permit = window.permit(WINDOW_BYTES_MAX);
        let calls = Arc::new(AtomicUsize::new(0));
        for who in [1, 10, 100] {
            let calls = Arc::clone(&calls);
            assert!(window.on_room(move || {
                calls.fetch_add(who, Ordering::SeqCst);
            }));
        }
        drop(permit);
        assert_eq!(calls.load(Ordering::SeqCst), 111);
    }

    /// Whether asking for room waits, and whether the callback was called at the end.
    #[track_caller]
    fn check_within(own: usize, outer: usize, waits: bool) {
        let client = ResponseWindow::new();
        let step = ResponseWindow::within(Some(Arc::clone(&client)));
        let permits: Vec<_> = (0..own).map(|_| step.permit(0)).collect();
        let calls = Arc::new(AtomicUsize::new(0));
        assert!(!client.on_room(|| ()), "a step's responses fill the step's window only");
        let clients: Vec<_> = (0..outer).map(|_| client.permit(0)).collect();
        let counted = Arc::clone(&calls);
        let is_full = step.on_room(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(is_full, waits, "{own} {outer}");
        drop((permits, clients));
        assert_eq!(calls.load(Ordering::SeqCst), usize::from(waits), "it is told once");
    }

    #[test]
    fn a_step_waits_for_its_own_window_and_for_the_clients() {
        check_within(0, 0, false);
        check_within(WINDOW_RESPONSES_MAX - 1, WINDOW_RESPONSES_MAX - 1, false);
        check_within(WINDOW_RESPONSES_MAX, 0, true);
        check_within(0, WINDOW_RESPONSES_MAX, true);
        check_within(WINDOW_RESPONSES_MAX, WINDOW_RESPONSES_MAX, true);
    }
}
