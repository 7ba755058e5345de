//! How many responses of one request may wait for its client?
//!
//! A model that answers many times may be faster than its client reads. Each of its responses holds a permit until the
//! client's connection has taken it. When too many permits are held, the model waits. Other requests do not.
//!
//! The window is full from a number of responses or bytes on. It then notifies who waits once half of it is free. If it
//! did so for each response that is taken, a client that takes one at a time could make a thread of the model, which
//! also answers others, wait before each response.
//!
//! Each step of an ensemble has a window of its own within that of the ensemble's client. A response to a step has a
//! permit of the step's window only. So a step waits for the steps after it and for the client, and never for a step
//! before it.

use std::fmt;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use nerite_budget::{PeerAccount, PeerCharge};
use nerite_locks::Mutex;

use crate::Status;
use crate::limits::{BACKLOG_BYTES_MAX, BACKLOG_RESPONSE_BYTES, WINDOW_BYTES_MAX, WINDOW_RESPONSES_MAX};

/// The responses of one request that were made and not taken yet.
#[derive(Default)]
pub struct ResponseWindow {
    state: Mutex<State>,
    /// The window of the ensemble's client, for a step's window. There must be room in both.
    outer: Option<Arc<ResponseWindow>>,
}

#[derive(Default)]
struct State {
    responses: usize,
    bytes: usize,
    waiting: Vec<Callback>,
    /// Charges the client for what waits beyond the window, until the window has room again.
    backlog: Option<PeerCharge>,
}

/// Responses that wait for their client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// How many.
    pub responses: usize,
    /// Their bytes.
    pub bytes: usize,
}

/// What a model that others wait for does with its next response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextResponse {
    /// It is made now.
    Send,
    /// It waits for the client, for this long at most.
    Wait(Duration),
    /// The request ends, because its client does not read these waiting responses.
    End(Backlog),
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

    /// Sets a callback that is called once when half of the window is free, on the thread that made the room. All callbacks are called. Each must
    /// check again, because other responses may have filled the window first, or the outer window may be full. Returns false if there is room now: then the
    /// callback is not called.
    pub fn on_room(&self, callback: impl FnOnce() + Send + 'static) -> bool {
        self.wait(Box::new(callback))
    }

    /// Whether there is room for another response.
    pub fn has_room(&self) -> bool {
        self.lock().has_room() && self.outer.as_ref().is_none_or(|outer| outer.has_room())
    }

    /// Whether half of the window is free.
    pub fn is_half_free(&self) -> bool {
        self.lock().is_half_free() && self.outer.as_ref().is_none_or(|outer| outer.is_half_free())
    }

    /// Whether a model that cannot wait may make its next response now. If the window is full, `account` is charged for all waiting responses, up to
    /// [`BACKLOG_BYTES_MAX`]. Err: the responses that wait for the client.
    pub fn exceed(&self, account: Option<&PeerAccount>) -> Result<(), Backlog> {
        let outer = self.outer.as_ref().map(|outer| outer.lock().full_backlog()).unwrap_or_default();
        let mut state = self.lock();
        let waits = match (state.full_backlog(), outer) {
            (None, None) => return Ok(()),
            (own, outer) => [own, outer].into_iter().flatten().fold(Backlog { responses: 0, bytes: 0 }, Backlog::and),
        };
        let bytes = waits.bytes.saturating_add(waits.responses.saturating_mul(BACKLOG_RESPONSE_BYTES));
        if bytes > BACKLOG_BYTES_MAX || !state.charge(account, bytes) { Err(waits) } else { Ok(()) }
    }

    /// What a model that others wait for does with its next response. It may wait for the client for at most `left`. It waits only if the responses that the
    /// client has not read cannot be kept.
    pub fn next_response(&self, account: Option<&PeerAccount>, left: Duration) -> NextResponse {
        match self.exceed(account) {
            Ok(()) => NextResponse::Send,
            Err(_) if !left.is_zero() => NextResponse::Wait(left),
            Err(waits) => NextResponse::End(waits),
        }
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

    fn is_half_free(&self) -> bool {
        self.responses <= WINDOW_RESPONSES_MAX / 2 && self.bytes <= WINDOW_BYTES_MAX / 2
    }

    /// The waiting responses, if there is no room.
    fn full_backlog(&self) -> Option<Backlog> {
        (!self.has_room()).then_some(Backlog { responses: self.responses, bytes: self.bytes })
    }

    /// Charges these bytes. False if the account refuses. Without an account nobody pays, because the request is from one of the server's own models.
    fn charge(&mut self, account: Option<&PeerAccount>, bytes: usize) -> bool {
        let Some(account) = account else { return true };
        match &mut self.backlog {
            // The charge is doubled each time, so that few responses have to change the account.
            Some(charge) if charge.bytes() >= bytes => true,
            Some(charge) => charge.resize((2 * bytes).min(BACKLOG_BYTES_MAX)).or_else(|_| charge.resize(bytes)).is_ok(),
            None => account.charge(bytes).map(|charge| self.backlog = Some(charge)).is_ok(),
        }
    }
}

impl Backlog {
    /// The error of a request that ends because its client does not read.
    pub fn status(self) -> Status {
        Status::unavailable(format!(
            "the client does not read: {} responses with {} bytes wait for it, and the server keeps {BACKLOG_BYTES_MAX} bytes at most for a request, or less if \
             the client makes it keep more elsewhere; read the responses faster, or ask for fewer",
            self.responses, self.bytes
        ))
    }

    fn and(self, other: Backlog) -> Backlog {
        Backlog { responses: self.responses + other.responses, bytes: self.bytes + other.bytes }
    }
}

impl Drop for ResponsePermit {
    fn drop(&mut self) {
        let (callbacks, _backlog) = {
            let mut state = self.window.lock();
            state.responses -= 1;
            state.bytes -= self.bytes;
            let callbacks = if state.is_half_free() { std::mem::take(&mut state.waiting) } else { Vec::new() };
            (callbacks, if state.has_room() { state.backlog.take() } else { None })
        };
        // The callbacks are called without the lock, because they may call functions of the window.
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
    fn who_waits_for_room_is_notified_once_half_of_the_window_is_free() {
        check(&[], None);
        check(&[0; WINDOW_RESPONSES_MAX - 1], None);
        check(&[0; WINDOW_RESPONSES_MAX], Some(WINDOW_RESPONSES_MAX / 2));
        check(&[0; WINDOW_RESPONSES_MAX + 3], Some(WINDOW_RESPONSES_MAX / 2 + 3));
        check(&[WINDOW_BYTES_MAX - 1], None);
        check(&[WINDOW_BYTES_MAX], Some(1));
        check(&[WINDOW_BYTES_MAX / 8; 8], Some(4));
        check(&[WINDOW_BYTES_MAX * 2, 1, 1], Some(3));
    }

    /// How many responses of this many bytes a model makes that does not wait, when nobody takes them.
    #[track_caller]
    fn check_backlog(bytes: usize, expected: usize) {
        let window = ResponseWindow::new();
        let mut permits = Vec::new();
        let waits = loop {
            match window.exceed(None) {
                Ok(()) => permits.push(window.permit(bytes)),
                Err(waits) => break waits,
            }
        };
        assert_eq!(waits, Backlog { responses: expected, bytes: expected * bytes });
        permits.truncate(WINDOW_RESPONSES_MAX / 2);
        assert_eq!(
            window.exceed(None).is_ok(),
            permits.iter().map(|permit| permit.bytes).sum::<usize>() <= BACKLOG_BYTES_MAX
        );
        permits.clear();
        assert_eq!(window.exceed(None), Ok(()));
    }

    #[test]
    fn a_model_that_does_not_wait_makes_a_bounded_number_of_bytes() {
        check_backlog(0, BACKLOG_BYTES_MAX / BACKLOG_RESPONSE_BYTES + 1);
        check_backlog((1 << 20) - BACKLOG_RESPONSE_BYTES, 65);
        check_backlog(2 * BACKLOG_BYTES_MAX, 1);
    }

    #[test]
    fn a_model_that_others_wait_for_keeps_then_waits_then_ends_the_request() {
        let (window, left) = (ResponseWindow::new(), Duration::from_millis(1));
        let kept = window.permit(BACKLOG_BYTES_MAX - BACKLOG_RESPONSE_BYTES);
        assert_eq!(window.next_response(None, left), NextResponse::Send);
        let beyond = window.permit(1);
        let waits = Backlog { responses: 2, bytes: BACKLOG_BYTES_MAX - BACKLOG_RESPONSE_BYTES + 1 };
        assert_eq!(window.next_response(None, left), NextResponse::Wait(left));
        assert_eq!(window.next_response(None, Duration::ZERO), NextResponse::End(waits));
        drop(beyond);
        assert_eq!(window.next_response(None, Duration::ZERO), NextResponse::Send);
        drop(kept);
    }

    #[test]
    fn a_step_does_not_exceed_what_its_client_may_leave() {
        let client = ResponseWindow::new();
        let step = ResponseWindow::within(Some(Arc::clone(&client)));
        let permit = client.permit(BACKLOG_BYTES_MAX);
        assert_eq!(step.exceed(None), Err(Backlog { responses: 1, bytes: BACKLOG_BYTES_MAX }));
        drop(permit);
        assert_eq!(step.exceed(None), Ok(()));
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
