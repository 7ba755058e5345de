//! What do the calls of one connection do, and what does each wait for?

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use nerite_listen::{Awaited, Progress};
use nerite_locks::Mutex;

/// What all calls of a connection share with it.
#[derive(Debug)]
pub(crate) struct Link {
    /// The connection's own notes.
    progress: Arc<Progress>,
    calls: AtomicUsize,
    /// Calls by what they do: receive, compute, answer.
    doing: [AtomicUsize; 3],
    /// Calls whose answer is whole and not wholly sent.
    handed_over: AtomicUsize,
    frames: AtomicU8,
    /// Bytes of header blocks that were read since the connection was polled.
    header_bytes: AtomicUsize,
    /// The call that the service began last, for the executor that polls it next.
    next: Mutex<Option<Arc<Call>>>,
}

/// Where the frames of the client are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Frames {
    /// The connection has not begun as HTTP/2 wants it.
    NotBegun,
    /// All are whole.
    Whole,
    /// Of one, or of a header block, only the beginning has come.
    Half,
}

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Doing {
    /// It has no request to work on: one is on its way, or the next one of a stream.
    Receive,
    /// It works on a request that is complete.
    Compute,
    /// It has an answer that the client is to take.
    Answer,
}

/// One call, from its head until the last byte of its answer went to the socket.
#[derive(Debug)]
pub(crate) struct Call {
    /// What it waits for.
    pub(crate) progress: Progress,
    doing: AtomicU8,
    handed_over: AtomicBool,
    gave_up: AtomicBool,
    link: Arc<Link>,
    /// Calls of all connections.
    all: Arc<AtomicUsize>,
}

impl Link {
    /// For a connection with these notes.
    pub(crate) fn new(progress: Arc<Progress>) -> Arc<Link> {
        Arc::new(Link {
            progress,
            calls: AtomicUsize::new(0),
            doing: Default::default(),
            handed_over: AtomicUsize::new(0),
            frames: AtomicU8::new(Frames::NotBegun as u8),
            header_bytes: AtomicUsize::new(0),
            next: Mutex::default(),
        })
    }

    /// A call begins, to be counted in `all`. Its executor asks for it right after.
    pub(crate) fn begin_call(self: &Arc<Link>, all: &Arc<AtomicUsize>) -> Arc<Call> {
        all.fetch_add(1, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.count(Doing::Receive).fetch_add(1, Ordering::Relaxed);
        self.progress.begin_request();
        let call = Arc::new(Call {
            progress: Progress::new(Awaited::Nothing),
            doing: AtomicU8::new(Doing::Receive as u8),
            handed_over: AtomicBool::new(false),
            gave_up: AtomicBool::new(false),
            link: Arc::clone(self),
            all: Arc::clone(all),
        });
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&call));
        call
    }

    /// The call that was begun last, once.
    pub(crate) fn take_next(&self) -> Option<Arc<Call>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The connection is polled.
    pub(crate) fn begin_turn(&self) {
        self.header_bytes.store(0, Ordering::Relaxed);
    }

    /// Bytes of header blocks that were read in this turn.
    pub(crate) fn header_bytes(&self) -> usize {
        self.header_bytes.load(Ordering::Relaxed)
    }

    /// So many more were read.
    pub(crate) fn add_header_bytes(&self, bytes: usize) {
        self.header_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes where the client's frames are.
    pub(crate) fn set_frames(&self, frames: Frames) {
        self.frames.store(frames as u8, Ordering::Relaxed);
    }

    /// Notes what the connection waits for. `leaving` if it is to end.
    pub(crate) fn note(&self, leaving: bool) {
        self.progress.wait_for(self.awaited(leaving));
    }

    fn awaited(&self, leaving: bool) -> Awaited {
        let is_any = |count: &AtomicUsize| count.load(Ordering::Relaxed) > 0;
        if leaving {
            // What is not a whole request is owed nothing.
            return match () {
                () if is_any(self.count(Doing::Compute)) => Awaited::Nothing,
                () if is_any(self.count(Doing::Answer)) || is_any(&self.handed_over) => Awaited::Write,
                () => Awaited::Request,
            };
        }
        match self.frames.load(Ordering::Relaxed) {
            frames if frames == Frames::NotBegun as u8 => Awaited::Head,
            frames if frames == Frames::Half as u8 => Awaited::Body,
            // The HTTP/2 library has the answer, and the client does not let it send.
            _ if is_any(&self.handed_over) => Awaited::Write,
            _ if is_any(&self.calls) => Awaited::Nothing,
            _ => Awaited::Request,
        }
    }

    fn count(&self, doing: Doing) -> &AtomicUsize {
        &self.doing[doing as usize]
    }
}

impl Call {
    /// Notes what the call does from now on.
    pub(crate) fn set_doing(&self, doing: Doing) {
        let before = self.doing.swap(doing as u8, Ordering::Relaxed);
        if before != doing as u8 {
            self.link.doing[usize::from(before)].fetch_sub(1, Ordering::Relaxed);
            self.link.count(doing).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes that the HTTP/2 library has all of the answer.
    pub(crate) fn hand_over(&self) {
        if !self.handed_over.swap(true, Ordering::Relaxed) {
            self.link.handed_over.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Has the call end because the rest of its message does not come.
    pub(crate) fn give_up(&self) {
        self.gave_up.store(true, Ordering::Relaxed);
    }

    /// Whether the rest of the message is not waited for any more.
    pub(crate) fn gave_up(&self) -> bool {
        self.gave_up.load(Ordering::Relaxed)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let Call { doing, handed_over, link, all, .. } = self;
        link.doing[usize::from(*doing.get_mut())].fetch_sub(1, Ordering::Relaxed);
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
    fn a_connection_waits_for_frames_calls_and_room() {
        let (link, all) = (link(), Arc::default());
        assert_eq!(link.awaited(false), Awaited::Head);
        link.set_frames(Frames::Whole);
        assert_eq!(link.awaited(false), Awaited::Request);
        let call = link.begin_call(&all);
        assert_eq!(link.awaited(false), Awaited::Nothing);
        link.set_frames(Frames::Half);
        assert_eq!(link.awaited(false), Awaited::Body);
        link.set_frames(Frames::Whole);
        call.hand_over();
        assert_eq!(link.awaited(false), Awaited::Write);
        drop((call, link.take_next()));
        assert_eq!(link.awaited(false), Awaited::Request);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_connection_that_leaves_waits_for_whole_requests_and_their_answers() {
        let (link, all) = (link(), Arc::default());
        link.set_frames(Frames::Half);
        let (first, second) = (link.begin_call(&all), link.begin_call(&all));
        assert_eq!(link.awaited(true), Awaited::Request);
        first.set_doing(Doing::Compute);
        second.set_doing(Doing::Answer);
        assert_eq!(link.awaited(true), Awaited::Nothing);
        first.set_doing(Doing::Receive);
        assert_eq!(link.awaited(true), Awaited::Write);
        drop((second, link.take_next()));
        assert_eq!(link.awaited(true), Awaited::Request);
    }
}
