//! How are the lines of requests written without making requests wait?
//!
//! A pipe that nobody reads, or a slow disk, would otherwise block a thread that serves clients. The lines go through a queue to a thread that writes
//! many at a time. Lines that do not fit are counted, and the count is logged.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// The most lines that wait to be written. A line has less than 2 KiB, because names in it are cut.
const LINES_MAX: usize = 4096;
/// Bytes that are written at once, and the lines that go beyond.
const WRITE_BYTES: usize = 64 << 10;
/// How long a queue that is full is waited for at the end.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The queue to the thread that writes. The first line starts the thread.
#[derive(Debug, Default)]
pub(super) struct RequestLines {
    /// `None` in it if there can be no thread.
    queue: OnceLock<Option<SyncSender<Entry>>>,
    lost: Arc<AtomicU64>,
}

enum Entry {
    Line(String),
    /// Gets a message once all lines before it are written.
    Flush(Sender<()>),
}

impl RequestLines {
    /// Puts a line into the queue. `write` makes the function that writes lines and reports how many were lost. Err returns the line if there is no
    /// thread.
    pub(super) fn put<W: FnMut(&str, u64) + Send + 'static>(
        &self,
        line: String,
        write: impl FnOnce() -> W,
    ) -> Result<(), String> {
        let Some(queue) = self.queue.get_or_init(|| start(&self.lost, write())) else { return Err(line) };
        match queue.try_send(Entry::Line(line)) {
            Err(TrySendError::Disconnected(Entry::Line(line))) => return Err(line),
            Err(TrySendError::Full(_)) => _ = self.lost.fetch_add(1, Ordering::Relaxed),
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
        }
        Ok(())
    }

    /// Waits until all lines are written, at most for `patience`.
    #[expect(clippy::disallowed_methods, reason = "at the end of the program")]
    pub(super) fn flush(&self, patience: Duration) {
        let Some(Some(queue)) = self.queue.get() else { return };
        let (deadline, (done, is_done)) = (Instant::now() + patience, channel());
        while let Err(TrySendError::Full(_)) = queue.try_send(Entry::Flush(done.clone())) {
            if Instant::now() >= deadline {
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
        let _ = is_done.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

fn start(lost: &Arc<AtomicU64>, write: impl FnMut(&str, u64) + Send + 'static) -> Option<SyncSender<Entry>> {
    let (sender, receiver) = sync_channel(LINES_MAX);
    let lost = Arc::clone(lost);
    let thread = thread::Builder::new().name("nerite-requests".to_owned());
    thread.spawn(move || work(&receiver, &lost, write)).ok()?;
    Some(sender)
}

/// The life of the thread that writes.
fn work(queue: &Receiver<Entry>, lost: &AtomicU64, mut write: impl FnMut(&str, u64)) {
    let mut lines = String::new();
    while let Ok(first) = queue.recv() {
        let mut flushed = Vec::new();
        let mut next = Some(first);
        while let Some(entry) = next {
            match entry {
                Entry::Line(line) => lines.push_str(&line),
                Entry::Flush(done) => flushed.push(done),
            }
            next = if lines.len() < WRITE_BYTES { queue.try_recv().ok() } else { None };
        }
        write(&lines, lost.swap(0, Ordering::Relaxed));
        lines.clear();
        // Whoever asked may not wait any more.
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
        let (lines, written) = (RequestLines::default(), Arc::new(Mutex::new((String::new(), 0))));
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
        lines.put("first\n".to_owned(), write).expect("a thread");
        has_begun.recv().expect("the thread writes");
        // From here on the log accepts nothing, like a pipe that nobody reads.
        let again = || |_: &str, _: u64| panic!("there is a thread");
        for _ in 0..LINES_MAX + 7 {
            lines.put("x\n".to_owned(), again).expect("a thread");
        }
        lines.flush(Duration::from_millis(20));
        drop(go_on);
        lines.flush(Duration::from_mins(1));
        let written = written.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!((written.0.matches("x\n").count(), written.1), (LINES_MAX, 7));
        assert!(written.0.starts_with("first\n"));
    }
}
