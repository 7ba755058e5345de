//! How are lines of the log written without making requests wait?
//!
//! A pipe that nobody reads would otherwise block a thread that serves clients. The lines go through a queue to a thread that writes many at a time.
//! Lines that do not fit are counted, and the count is logged.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nerite_locks::Mutex;

/// The most lines that wait to be written.
const LINES_MAX: usize = 4096;
/// The most bytes of lines that wait to be written.
const BYTES_MAX: usize = 8 << 20;
/// Lines are collected until they have this many bytes, and then written at once.
const WRITE_BYTES: usize = 64 << 10;
/// How often the flush tries again to put its message into a full queue.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The queue to the thread that writes. The first line starts the thread.
#[derive(Default)]
pub(super) struct LineQueue {
    sender: Mutex<Option<SyncSender<Entry>>>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Bytes of lines that are not written yet.
    waiting_bytes: AtomicUsize,
    /// Lines that are not written yet.
    waiting_lines: AtomicUsize,
    /// Lines that did not fit, since this was last logged.
    lost: AtomicU64,
}

/// How much of the queue may be full when a line is put into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    Whole,
    /// For lines whose number models decide.
    Half,
}

enum Entry {
    Line(String),
    /// Gets a message once all lines before it are written.
    Flush(Sender<()>),
}

impl LineQueue {
    /// Whether all lines are written.
    pub(super) fn is_empty(&self) -> bool {
        self.counts.waiting_bytes.load(Ordering::Acquire) == 0
    }

    /// Puts a line into the queue. `write` makes the function that writes lines and reports how many were lost. If the system has no thread, the line is lost,
    /// and the next line tries again. Returns whether the line has a place.
    pub(super) fn put<W: FnMut(&str, u64) + Send + 'static>(
        &self,
        line: String,
        share: Share,
        write: impl FnOnce() -> W,
    ) -> bool {
        let bytes = line.len();
        let (lines_max, bytes_max) = share.bounds();
        // Counted before the thread can have written it.
        let all_bytes = self.counts.waiting_bytes.fetch_add(bytes, Ordering::AcqRel) + bytes;
        let all_lines = self.counts.waiting_lines.fetch_add(1, Ordering::AcqRel) + 1;
        let is_room = all_bytes <= bytes_max && all_lines <= lines_max;
        let is_sent = is_room && self.sender(write).is_some_and(|sender| sender.try_send(Entry::Line(line)).is_ok());
        if !is_sent {
            self.counts.waiting_bytes.fetch_sub(bytes, Ordering::AcqRel);
            self.counts.waiting_lines.fetch_sub(1, Ordering::AcqRel);
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
        }
        is_sent
    }

    /// Waits until all lines are written, at most for `patience`.
    #[expect(clippy::disallowed_methods, reason = "at the end of the program")]
    pub(super) fn flush(&self, patience: Duration) {
        let Some(sender) = self.sender.lock().unwrap_or_else(PoisonError::into_inner).clone() else { return };
        let (deadline, (done, is_done)) = (Instant::now() + patience, channel());
        while let Err(TrySendError::Full(_)) = sender.try_send(Entry::Flush(done.clone())) {
            if Instant::now() >= deadline {
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
        let _ = is_done.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }

    fn sender<W: FnMut(&str, u64) + Send + 'static>(&self, write: impl FnOnce() -> W) -> Option<SyncSender<Entry>> {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        if sender.is_none() {
            *sender = start(&self.counts, write());
        }
        sender.clone()
    }
}

impl Share {
    /// The most lines and bytes that may wait, with the line that is put into the queue. The channel bounds the lines of the whole queue.
    fn bounds(self) -> (usize, usize) {
        match self {
            Share::Whole => (usize::MAX, BYTES_MAX),
            Share::Half => (LINES_MAX / 2, BYTES_MAX / 2),
        }
    }
}

fn start(counts: &Arc<Counts>, write: impl FnMut(&str, u64) + Send + 'static) -> Option<SyncSender<Entry>> {
    let (sender, receiver) = sync_channel(LINES_MAX);
    let counts = Arc::clone(counts);
    let thread = thread::Builder::new().name("nerite-log-lines".to_owned());
    thread.spawn(move || work(&receiver, &counts, write)).ok()?;
    Some(sender)
}

/// The loop of the thread that writes.
fn work(queue: &Receiver<Entry>, counts: &Counts, mut write: impl FnMut(&str, u64)) {
    let mut lines = String::new();
    while let Ok(first) = queue.recv() {
        let (mut flushed, mut count) = (Vec::new(), 0);
        let mut next = Some(first);
        while let Some(entry) = next {
            match entry {
                Entry::Line(line) => {
                    lines.push_str(&line);
                    count += 1;
                }
                Entry::Flush(done) => flushed.push(done),
            }
            next = if lines.len() < WRITE_BYTES { queue.try_recv().ok() } else { None };
        }
        write(&lines, counts.lost.swap(0, Ordering::Relaxed));
        counts.waiting_bytes.fetch_sub(lines.len(), Ordering::AcqRel);
        counts.waiting_lines.fetch_sub(count, Ordering::AcqRel);
        lines.clear();
        // The thread that flushes may have stopped waiting.
        for done in &flushed {
            let _ = done.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    #[test]
    fn a_line_waits_for_nobody_and_what_does_not_fit_is_counted() {
        let (lines, written) = (LineQueue::default(), Arc::new(Mutex::new((String::new(), 0))));
        let (begun, has_begun) = channel();
        let (go_on, held) = channel::<()>();
        let write = || {
            let written = Arc::clone(&written);
            move |lines: &str, lost| {
                let _ = begun.send(());
                let _ = held.recv();
                let mut written = written.lock().unwrap_or_else(PoisonError::into_inner);
                written.0.push_str(lines);
                written.1 += lost;
            }
        };
        lines.put("first\n".to_owned(), Share::Whole, write);
        has_begun.recv().expect("the thread writes");
        assert!(!lines.is_empty());
        // From here on the log accepts nothing, like a pipe that nobody reads.
        let again = || |_: &str, _: u64| panic!("there is a thread");
        for _ in 0..LINES_MAX {
            lines.put("m\n".to_owned(), Share::Half, again);
        }
        for _ in 0..LINES_MAX {
            lines.put("x\n".to_owned(), Share::Whole, again);
        }
        lines.flush(Duration::from_millis(20));
        drop(go_on);
        lines.flush(Duration::from_mins(1));
        let written = written.lock().unwrap_or_else(PoisonError::into_inner);
        // Lines of models leave half of the queue to others. The line that is being written is one of them.
        let count = |line| written.0.matches(line).count();
        assert_eq!((count("m\n"), count("x\n")), (LINES_MAX / 2 - 1, LINES_MAX / 2 + 1));
        assert_eq!(written.1, LINES_MAX as u64);
        assert!(written.0.starts_with("first\n"));
        assert!(lines.is_empty());
    }

    #[test]
    fn long_lines_are_bounded_by_their_bytes() {
        let lines = LineQueue::default();
        let (go_on, held) = channel::<()>();
        let lost = Arc::new(AtomicU64::new(0));
        let write = || {
            let lost = Arc::clone(&lost);
            move |_: &str, count| {
                let _ = held.recv();
                lost.fetch_add(count, Ordering::Relaxed);
            }
        };
        lines.put("x".repeat(BYTES_MAX), Share::Whole, write);
        let again = || |_: &str, _: u64| panic!("there is a thread");
        lines.put("y".to_owned(), Share::Whole, again);
        drop(go_on);
        lines.flush(Duration::from_mins(1));
        assert!(lines.is_empty());
        // The thread may have been told of it with the first line.
        assert_eq!(lost.load(Ordering::Relaxed) + lines.counts.lost.load(Ordering::Relaxed), 1);
    }
}
