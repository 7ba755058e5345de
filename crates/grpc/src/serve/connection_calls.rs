//! What do the calls of one connection do, and what does the server wait for?

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use nerite_listen::{Awaited, Progress};

/// The most states of ended calls that a thread keeps.
const SPARE_MAX: usize = 64;

thread_local! {
    /// The call that began last on this thread. Directly afterwards, the HTTP/2 library gives the future of that call to the executor.
    static NEXT: Cell<Option<Call>> = const { Cell::new(None) };
    /// States of calls that have ended, for later calls. Each has one owner.
    static SPARE: RefCell<Vec<Arc<CallState>>> = const { RefCell::new(Vec::new()) };
}

/// State that all calls of a connection share with it.
#[derive(Debug)]
pub(crate) struct ConnectionCalls {
    /// The connection's progress.
    progress: Arc<Progress>,
    calls: AtomicUsize,
    has_begun: AtomicBool,
    /// Number of calls in each phase: receive, compute, answer.
    calls_by_phase: [AtomicUsize; 3],
    /// Number of calls whose whole answer is in the HTTP/2 library, but not sent completely.
    handed_over: AtomicUsize,
    frames: AtomicU8,
    /// Bytes of header blocks that were read in the current poll of the connection.
    header_bytes: AtomicUsize,
}

/// The state of the client's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Frames {
    /// Not even the header of the first frame has arrived.
    NotBegun,
    /// All frames have arrived completely.
    Complete,
    /// A frame or a header block has arrived only in part.
    Incomplete,
}

/// The phase of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CallPhase {
    /// It has no request to work on: the request, or the next one of a stream, is still arriving.
    Receive,
    /// It works on a complete request.
    Compute,
    /// It has an answer that the client must read.
    Answer,
}

/// One call, from its head until the last byte of its answer is in the socket. A clone is the same call.
#[derive(Clone, Debug)]
pub(crate) struct Call(Arc<CallState>);

/// The state of a call.
#[derive(Debug)]
pub(crate) struct CallState {
    /// The progress of the call, which says what the server waits for.
    pub(crate) progress: Progress,
    phase: AtomicU8,
    handed_over: AtomicBool,
    gave_up: AtomicBool,
    /// `None` once the call has ended.
    counted: Option<Counted>,
}

/// Where a call is counted.
#[derive(Debug)]
struct Counted {
    connection_calls: Arc<ConnectionCalls>,
    /// Number of calls of all connections.
    all: Arc<AtomicUsize>,
}

impl ConnectionCalls {
    /// The state of a connection with this progress.
    pub(crate) fn new(progress: Arc<Progress>) -> Arc<ConnectionCalls> {
        Arc::new(ConnectionCalls {
            progress,
            calls: AtomicUsize::new(0),
            has_begun: AtomicBool::new(false),
            calls_by_phase: Default::default(),
            handed_over: AtomicUsize::new(0),
            frames: AtomicU8::new(Frames::NotBegun as u8),
            header_bytes: AtomicUsize::new(0),
        })
    }

    /// Begins a call, and counts it in `all`. The executor calls [`ConnectionCalls::take_next`] right after, on the same thread.
    pub(crate) fn begin_call(self: &Arc<ConnectionCalls>, all: &Arc<AtomicUsize>) -> Call {
        all.fetch_add(1, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.has_begun.store(true, Ordering::Relaxed);
        self.count(CallPhase::Receive).fetch_add(1, Ordering::Relaxed);
        self.progress.begin_request();
        let call = Call::new(Counted { connection_calls: Arc::clone(self), all: Arc::clone(all) });
        NEXT.set(Some(call.clone()));
        call
    }

    /// Takes the call that was begun last on this thread, if it is one of this connection.
    pub(crate) fn take_next(&self) -> Option<Call> {
        NEXT.take().filter(|call| {
            call.counted.as_ref().is_some_and(|of| std::ptr::eq(Arc::as_ptr(&of.connection_calls), self))
        })
    }

    /// Whether a call has begun on this connection.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// Call this when the connection is polled.
    pub(crate) fn begin_poll(&self) {
        self.header_bytes.store(0, Ordering::Relaxed);
    }

    /// Bytes of header blocks that were read in this poll.
    pub(crate) fn header_bytes(&self) -> usize {
        self.header_bytes.load(Ordering::Relaxed)
    }

    /// Adds bytes of header blocks.
    pub(crate) fn add_header_bytes(&self, bytes: usize) {
        self.header_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Sets the state of the client's frames.
    pub(crate) fn set_frames(&self, frames: Frames) {
        self.frames.store(frames as u8, Ordering::Relaxed);
    }

    /// Records what the connection waits for. `leaving` says that it is to end.
    pub(crate) fn note(&self, leaving: bool) {
        self.progress.wait_for(self.awaited(leaving));
    }

    fn awaited(&self, leaving: bool) -> Awaited {
        let is_any = |count: &AtomicUsize| count.load(Ordering::Relaxed) > 0;
        if leaving {
            // The server does not wait for incomplete requests.
            return match () {
                () if is_any(self.count(CallPhase::Compute)) => Awaited::Nothing,
                () if is_any(self.count(CallPhase::Answer)) || is_any(&self.handed_over) => Awaited::Write,
                () => Awaited::Request,
            };
        }
        match self.frames.load(Ordering::Relaxed) {
            frames if frames == Frames::NotBegun as u8 => Awaited::Head,
            frames if frames == Frames::Incomplete as u8 => Awaited::Body,
            // The HTTP/2 library has the answer, but the client's window is full.
            _ if is_any(&self.handed_over) => Awaited::Write,
            _ if is_any(&self.calls) => Awaited::Nothing,
            _ => Awaited::Request,
        }
    }

    fn count(&self, phase: CallPhase) -> &AtomicUsize {
        &self.calls_by_phase[phase as usize]
    }
}

impl Call {
    fn new(counted: Counted) -> Call {
        let state = CallState::new(Some(counted));
        // A thread that is ending keeps none.
        let Some(mut spare) = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten() else {
            return Call(Arc::new(state));
        };
        match Arc::get_mut(&mut spare) {
            Some(place) => {
                *place = state;
                Call(spare)
            }
            None => Call(Arc::new(state)),
        }
    }

    #[cfg(test)]
    pub(crate) fn owners(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

impl Deref for Call {
    type Target = CallState;

    fn deref(&self) -> &CallState {
        &self.0
    }
}

impl Drop for Call {
    /// The last owner ends the call and keeps its state for another call.
    fn drop(&mut self) {
        // This check is cheaper than `get_mut`. If two owners drop the call at once, both may see a count above 1. Then the drop of the state ends
        // the call, and the state is freed and not reused.
        if Arc::strong_count(&self.0) > 1 {
            return;
        }
        let Some(state) = Arc::get_mut(&mut self.0) else { return };
        state.end();
        // An error means that the thread ends.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARE_MAX {
                spare.push(Arc::clone(&self.0));
            }
        });
    }
}

impl CallState {
    fn new(counted: Option<Counted>) -> CallState {
        CallState {
            progress: Progress::new(Awaited::Nothing),
            phase: AtomicU8::new(CallPhase::Receive as u8),
            handed_over: AtomicBool::new(false),
            gave_up: AtomicBool::new(false),
            counted,
        }
    }

    /// Sets the call's phase.
    pub(crate) fn set_phase(&self, phase: CallPhase) {
        let before = self.phase.swap(phase as u8, Ordering::Relaxed);
        if let Some(Counted { connection_calls, .. }) = &self.counted
            && before != phase as u8
        {
            connection_calls.calls_by_phase[usize::from(before)].fetch_sub(1, Ordering::Relaxed);
            connection_calls.count(phase).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that the HTTP/2 library has the whole answer.
    pub(crate) fn hand_over(&self) {
        if let Some(Counted { connection_calls, .. }) = &self.counted
            && !self.handed_over.swap(true, Ordering::Relaxed)
        {
            connection_calls.handed_over.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes the call end, because the rest of its message does not arrive.
    pub(crate) fn give_up(&self) {
        self.gave_up.store(true, Ordering::Relaxed);
    }

    /// Whether the call must end, because the rest of its message does not arrive.
    pub(crate) fn gave_up(&self) -> bool {
        self.gave_up.load(Ordering::Relaxed)
    }

    /// Ends the call, if it has not ended yet: it is not counted any more.
    fn end(&mut self) {
        let Some(Counted { connection_calls, all }) = self.counted.take() else { return };
        connection_calls.calls_by_phase[usize::from(*self.phase.get_mut())].fetch_sub(1, Ordering::Relaxed);
        connection_calls.handed_over.fetch_sub(usize::from(*self.handed_over.get_mut()), Ordering::Relaxed);
        connection_calls.calls.fetch_sub(1, Ordering::Relaxed);
        all.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for CallState {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection_calls() -> Arc<ConnectionCalls> {
        ConnectionCalls::new(Arc::new(Progress::new(Awaited::Head)))
    }

    #[test]
    fn a_connection_waits_for_frames_calls_and_the_clients_window() {
        let (connection_calls, all) = (connection_calls(), Arc::default());
        assert_eq!(connection_calls.awaited(false), Awaited::Head);
        connection_calls.set_frames(Frames::Complete);
        assert_eq!(connection_calls.awaited(false), Awaited::Request);
        let call = connection_calls.begin_call(&all);
        assert_eq!(connection_calls.awaited(false), Awaited::Nothing);
        connection_calls.set_frames(Frames::Incomplete);
        assert_eq!(connection_calls.awaited(false), Awaited::Body);
        connection_calls.set_frames(Frames::Complete);
        call.hand_over();
        assert_eq!(connection_calls.awaited(false), Awaited::Write);
        drop((call, connection_calls.take_next()));
        assert_eq!(connection_calls.awaited(false), Awaited::Request);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_connection_that_is_to_end_waits_for_complete_requests_and_their_answers() {
        let (connection_calls, all) = (connection_calls(), Arc::default());
        connection_calls.set_frames(Frames::Incomplete);
        let (first, second) = (connection_calls.begin_call(&all), connection_calls.begin_call(&all));
        assert_eq!(connection_calls.awaited(true), Awaited::Request);
        first.set_phase(CallPhase::Compute);
        second.set_phase(CallPhase::Answer);
        assert_eq!(connection_calls.awaited(true), Awaited::Nothing);
        first.set_phase(CallPhase::Receive);
        assert_eq!(connection_calls.awaited(true), Awaited::Write);
        drop((second, connection_calls.take_next()));
        assert_eq!(connection_calls.awaited(true), Awaited::Request);
    }

    #[test]
    fn the_state_of_a_call_that_ended_is_used_again_and_has_no_connection() {
        let (connection_calls, all) = (connection_calls(), Arc::default());
        let begin = || (connection_calls.begin_call(&all), connection_calls.take_next()).0;
        let call = begin();
        let (kept, state) = (call.clone(), Arc::as_ptr(&call.0));
        call.set_phase(CallPhase::Answer);
        call.hand_over();
        call.give_up();
        drop(call);
        assert!(!std::ptr::eq(Arc::as_ptr(&begin().0), state), "the first call has not ended");
        drop(kept);
        assert_eq!((all.load(Ordering::Relaxed), Arc::strong_count(&connection_calls)), (0, 1));
        let next = begin();
        assert!(std::ptr::eq(Arc::as_ptr(&next.0), state) && !next.gave_up());
        assert_eq!(connection_calls.awaited(false), Awaited::Head);
        next.hand_over();
        assert_eq!(connection_calls.handed_over.load(Ordering::Relaxed), 1);
        let many: Vec<Call> = (0..2 * SPARE_MAX).map(|_| begin()).collect();
        drop((next, many));
        assert_eq!(SPARE.with_borrow(Vec::len), SPARE_MAX);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }
}
