//! What do the calls of one connection do, and what does the server wait for?

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use nerite_listen::{Awaited, Progress};

thread_local! {
    /// The call that a service began last on this thread. The HTTP/2 library gives it to the executor before it does anything else.
    static NEXT: Cell<Option<Arc<Call>>> = const { Cell::new(None) };
}

/// State that all calls of a connection share with it.
#[derive(Debug)]
pub(crate) struct Link {
    /// The connection's progress.
    progress: Arc<Progress>,
    calls: AtomicUsize,
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
    /// No frame has arrived completely yet.
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

/// One call, from its head until the last byte of its answer is in the socket.
#[derive(Debug)]
pub(crate) struct Call {
    /// What it waits for.
    pub(crate) progress: Progress,
    phase: AtomicU8,
    handed_over: AtomicBool,
    gave_up: AtomicBool,
    link: Arc<Link>,
    /// Number of calls of all connections.
    all: Arc<AtomicUsize>,
}

impl Link {
    /// The state of a connection with this progress.
    pub(crate) fn new(progress: Arc<Progress>) -> Arc<Link> {
        Arc::new(Link {
            progress,
            calls: AtomicUsize::new(0),
            calls_by_phase: Default::default(),
            handed_over: AtomicUsize::new(0),
            frames: AtomicU8::new(Frames::NotBegun as u8),
            header_bytes: AtomicUsize::new(0),
        })
    }

    /// Begins a call, and counts it in `all`. The executor calls [`Link::take_next`] right after, on the same thread.
    pub(crate) fn begin_call(self: &Arc<Link>, all: &Arc<AtomicUsize>) -> Arc<Call> {
        all.fetch_add(1, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.count(CallPhase::Receive).fetch_add(1, Ordering::Relaxed);
        self.progress.begin_request();
        let call = Arc::new(Call {
            progress: Progress::new(Awaited::Nothing),
            phase: AtomicU8::new(CallPhase::Receive as u8),
            handed_over: AtomicBool::new(false),
            gave_up: AtomicBool::new(false),
            link: Arc::clone(self),
            all: Arc::clone(all),
        });
        NEXT.set(Some(Arc::clone(&call)));
        call
    }

    /// Takes the call that was begun last on this thread, if it is one of this connection.
    pub(crate) fn take_next(&self) -> Option<Arc<Call>> {
        NEXT.take().filter(|call| std::ptr::eq(Arc::as_ptr(&call.link), self))
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
    /// Sets the call's phase.
    pub(crate) fn set_phase(&self, phase: CallPhase) {
        let before = self.phase.swap(phase as u8, Ordering::Relaxed);
        if before != phase as u8 {
            self.link.calls_by_phase[usize::from(before)].fetch_sub(1, Ordering::Relaxed);
            self.link.count(phase).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that the HTTP/2 library has the whole answer.
    pub(crate) fn hand_over(&self) {
        if !self.handed_over.swap(true, Ordering::Relaxed) {
            self.link.handed_over.fetch_add(1, Ordering::Relaxed);
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
}

impl Drop for Call {
    fn drop(&mut self) {
        let Call { phase, handed_over, link, all, .. } = self;
        link.calls_by_phase[usize::from(*phase.get_mut())].fetch_sub(1, Ordering::Relaxed);
        link.handed_over.fetch_sub(usize::from(*handed_over.get_mut()), Ordering::Relaxed);
        link.calls.fetch_sub(1, Ordering::Relaxed);
        all.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> Arc<Link> {
        Link::new(Arc::new(Progress::new(Awaited::Head)))
    }

    #[test]
    fn a_connection_waits_for_frames_calls_and_the_clients_window() {
        let (link, all) = (link(), Arc::default());
        assert_eq!(link.awaited(false), Awaited::Head);
        link.set_frames(Frames::Complete);
        assert_eq!(link.awaited(false), Awaited::Request);
        let call = link.begin_call(&all);
        assert_eq!(link.awaited(false), Awaited::Nothing);
        link.set_frames(Frames::Incomplete);
        assert_eq!(link.awaited(false), Awaited::Body);
        link.set_frames(Frames::Complete);
        call.hand_over();
        assert_eq!(link.awaited(false), Awaited::Write);
        drop((call, link.take_next()));
        assert_eq!(link.awaited(false), Awaited::Request);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_connection_that_is_to_end_waits_for_complete_requests_and_their_answers() {
        let (link, all) = (link(), Arc::default());
        link.set_frames(Frames::Incomplete);
        let (first, second) = (link.begin_call(&all), link.begin_call(&all));
        assert_eq!(link.awaited(true), Awaited::Request);
        first.set_phase(CallPhase::Compute);
        second.set_phase(CallPhase::Answer);
        assert_eq!(link.awaited(true), Awaited::Nothing);
        first.set_phase(CallPhase::Receive);
        assert_eq!(link.awaited(true), Awaited::Write);
        drop((second, link.take_next()));
        assert_eq!(link.awaited(true), Awaited::Request);
    }
}
