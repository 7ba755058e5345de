//! How are lines of the log written without making requests wait?
//!
//! A pipe that nobody reads, or a slow disk, would otherwise block a thread that serves clients. The lines go through a queue to a thread that writes
//! many at a time. Lines that do not fit are counted, and the count is logged.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use log::Level;

/// The most lines that wait to be written. Most have less than 2 KiB, because names in them are cut.
const LINES_MAX: usize = 4096;
/// Bytes that are written at once, and the lines that go beyond.
const WRITE_BYTES: usize = 64 << 10;
/// How long a queue that is full is waited for at the end.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The queue to the thread that writes. The first line starts the thread.
#[derive(Debug, Default)]
pub(super) struct LineQueue {
    /// `None` in it if there can be no thread.
    sender: OnceLock<Option<SyncSender<Entry>>>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Lines that are not written yet.
    waiting: AtomicUsize,
    /// Lines that did not fit, since this was last logged.
    lost: AtomicU64,
}

enum Entry {
    Line(Level, String),
    /// Gets a message once all lines before it are written.
    Flush(Sender<()>),
}

impl LineQueue {
    /// Whether all lines are written.
    pub(super) fn is_empty(&self) -> bool {
        self.counts.waiting.load(Ordering::Acquire) == 0
    }

    /// Puts a line into the queue. `write` makes the function that writes lines of one level and reports how many were lost. Err returns the line if there
    /// is no thread.
    pub(super) fn put<W: FnMut(Level, &str, u64) + Send + 'static>(
        &self,
        level: Level,
        line: String,
        write: impl FnOnce() -> W,
    ) -> Result<(), String> {
        let Some(sender) = self.sender.get_or_init(|| start(&self.counts, write())) else { return Err(line) };
        // Counted before the thread can have written it.
        self.counts.waiting.fetch_add(1, Ordering::AcqRel);
        let Err(unsent) = sender.try_send(Entry::Line(level, line)) else { return Ok(()) };
        self.counts.waiting.fetch_sub(1, Ordering::AcqRel);
        match unsent {
            TrySendError::Disconnected(Entry::Line(_, line)) => return Err(line),
            TrySendError::Full(_) => _ = self.counts.lost.fetch_add(1, Ordering::Relaxed),
            TrySendError::Disconnected(Entry::Flush(_)) => {}
        }
        Ok(())
    }

    /// Waits until all lines are written, at most for `patience`.
    #[expect(clippy::disallowed_methods, reason = "at the end of the program")]
    pub(super) fn flush(&self, patience: Duration) {
        let Some(Some(sender)) = self.sender.get() else { return };
        let (deadline, (done, is_done)) = (Instant::now() + patience, channel());
        while let Err(TrySendError::Full(_)) = sender.try_send(Entry::Flush(done.clone())) {
            if Instant::now() >= deadline {
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
        let _ = is_done.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

fn start(counts: &Arc<Counts>, write: impl FnMut(Level, &str, u64) + Send + 'static) -> Option<SyncSender<Entry>> {
    let (sender, receiver) = sync_channel(LINES_MAX);
    let counts = Arc::clone(counts);
    let thread = thread::Builder::new().name("nerite-log-lines".to_owned());
    thread.spawn(move || work(&receiver, &counts, write)).ok()?;
    Some(sender)
}

/// The loop of the thread that writes.
fn work(queue: &Receiver<Entry>, counts: &Counts, mut write: impl FnMut(Level, &str, u64)) {
    let mut next = None;
    while let Some(first) = next.take().or_else(|| queue.recv().ok()) {
        let (level, mut lines) = match first {
            Entry::Line(level, line) => (level, line),
            Entry::Flush(done) => {
                // Whoever asked may not wait any more.
                let _ = done.send(());
                continue;
            }
        };
        let mut count = 1;
        while lines.len() < WRITE_BYTES {
            match queue.try_recv() {
                Ok(Entry::Line(of, line)) if of == level => {
                    lines.push_str(&line);
                    count += 1;
                }
                other => {
                    next = other.ok();
                    break;
                }
            }
        }
        write(level, &lines, counts.lost.swap(0, Ordering::Relaxed));
        counts.waiting.fetch_sub(count, Ordering::AcqRel);
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
            move |level, lines: &str, lost| {
                let _ = begun.send(());
                let _ = held.recv();
                let mut written = written.lock().unwrap_or_else(PoisonError::into_inner);
                assert_eq!(level, Level::Info);
                written.0.push_str(lines);
                written.1 += lost;
            }
        };
        lines.put(Level::Info, "first\n".to_owned(), write).expect("a thread");
        has_begun.recv().expect("the thread writes");
        assert!(!lines.is_empty());
        // From here on the log accepts nothing, like a pipe that nobody reads.
        let again = || |_: Level, _: &str, _: u64| panic!("there is a thread");
        for _ in 0..LINES_MAX + 7 {
            lines.put(Level::Info, "x\n".to_owned(), again).expect("a thread");
        }
        lines.flush(Duration::from_millis(20));
        drop(go_on);
        lines.flush(Duration::from_mins(1));
        let written = written.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!((written.0.matches("x\n").count(), written.1), (LINES_MAX, 7));
        assert!(written.0.starts_with("first\n"));
        assert!(lines.is_empty());
    }

    #[test]
    fn lines_of_different_levels_keep_their_order() {
        let (lines, (to, written)) = (LineQueue::default(), channel());
        let write = || {
            let to = to.clone();
            move |level, lines: &str, _| _ = to.send((level, lines.to_owned()))
        };
        for (level, line) in [(Level::Info, "a"), (Level::Warn, "b"), (Level::Warn, "c"), (Level::Info, "d")] {
            lines.put(level, line.to_owned(), write).expect("a thread");
        }
        lines.flush(Duration::from_mins(1));
        let written: Vec<_> = written.try_iter().collect();
        let of_level =
            |wanted| written.iter().filter(|(level, _)| *level == wanted).map(|(_, text)| &**text).collect::<String>();
        assert_eq!(written.iter().map(|(_, text)| &**text).collect::<String>(), "abcd");
        assert_eq!((of_level(Level::Info), of_level(Level::Warn)), ("ad".to_owned(), "bc".to_owned()));
    }
}
