//! Where do lines of the log go, and which thread writes them?
//!
//! ```text
//!   line ─┬─ the output takes it now ─────────────────────► file, stdout or stderr
//!         └─ it does not, or lines wait ─► queue ─► thread ─────────────┘
//! ```

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use nerite_locks::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use super::queue::LineQueue;

/// A pipe that is writable takes so many bytes without blocking: `PIPE_BUF` of pipe(7).
const WRITTEN_AT_ONCE_BYTES_MAX: usize = 4096;

/// One destination of lines.
pub(super) struct LogOutput {
    target: Target,
    /// A terminal says that it is writable if it has any space, so a write may block. Another thread does all of them.
    is_terminal: bool,
    /// Held by a thread that writes. Only the queue's thread waits for it.
    writing: Mutex<()>,
    queue: LineQueue,
}

enum Target {
    File(File),
    Stdout,
    Stderr,
}

impl LogOutput {
    pub(super) fn file(file: File) -> LogOutput {
        LogOutput::new(Target::File(file))
    }

    pub(super) fn stdout() -> LogOutput {
        LogOutput::new(Target::Stdout)
    }

    pub(super) fn stderr() -> LogOutput {
        LogOutput::new(Target::Stderr)
    }

    fn new(target: Target) -> LogOutput {
        let is_terminal = target.fd().is_terminal();
        LogOutput { target, is_terminal, writing: Mutex::default(), queue: LineQueue::default() }
    }

    /// Writes a line if that does not make this thread wait. Returns whether it did.
    pub(super) fn try_write(&self, line: &str) -> bool {
        if self.is_terminal || line.len() > WRITTEN_AT_ONCE_BYTES_MAX {
            return false;
        }
        let Some(_alone) = self.try_lock() else { return false };
        // Asked under the lock, so no line comes between two parts of what the queue's thread writes.
        let accepts = self.queue.is_empty() && self.is_ready();
        if accepts {
            self.put(line.as_bytes());
        }
        accepts
    }

    /// Another thread writes the line. `write` makes the function that it calls with lines, and with the number of those that were lost.
    pub(super) fn enqueue<W: FnMut(&str, u64) + Send + 'static>(&self, line: String, write: impl FnOnce() -> W) {
        self.queue.put(line, write);
    }

    /// Waits until the output has taken the lines. Other threads do not wait meanwhile, because this one waits without the lock.
    pub(super) fn write_all(&self, lines: &str) {
        for piece in lines.as_bytes().chunks(WRITTEN_AT_ONCE_BYTES_MAX) {
            while !self.is_written(piece) {
                let _ = poll(&mut [self.writable()], None);
            }
        }
    }

    /// Waits until the queue is empty, at most for `patience`.
    pub(super) fn flush(&self, patience: Duration) {
        self.queue.flush(patience);
    }

    fn is_written(&self, piece: &[u8]) -> bool {
        let _alone = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let accepts = self.is_ready();
        if accepts {
            self.put(piece);
        }
        accepts
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
        match self.writing.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether the output takes something now. A pipe that nobody reads does not, once it is full. A file on a disk always does. So does a pipe whose reader
    /// has gone: the write fails at once.
    fn is_ready(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An error says nothing about the output.
        retry_on_intr(|| poll(&mut [self.writable()], Some(&at_once))).map_or(true, |count| count > 0)
    }

    fn writable(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.target.fd(), PollFlags::OUT)
    }

    /// A log that cannot be written is no reason to stop serving.
    fn put(&self, bytes: &[u8]) {
        let written = match &self.target {
            Target::File(file) => (&mut &*file).write_all(bytes),
            Target::Stderr => io::stderr().write_all(bytes),
            Target::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
        };
        drop(written);
    }
}

impl Target {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Target::File(file) => file.as_fd(),
            Target::Stdout => rustix::stdio::stdout(),
            Target::Stderr => rustix::stdio::stderr(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn a_line_is_written_only_if_the_output_takes_it_at_once() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let output = LogOutput::file(File::from(OwnedFd::from(writer)));
        let line = "x".repeat(WRITTEN_AT_ONCE_BYTES_MAX);
        assert!(!output.try_write(&format!("{line}x")), "it may block");
        let written = (0..1000).take_while(|_| output.try_write(&line)).count();
        assert!((1..1000).contains(&written), "{written}: a pipe is full at some point");
        let mut read = vec![0; line.len()];
        reader.read_exact(&mut read).expect("a line");
        assert!(output.try_write(&line));
        let (_go_on, held) = std::sync::mpsc::channel::<()>();
        output.queue.put("waits".to_owned(), move || move |_: &str, _: u64| _ = held.recv());
        reader.read_exact(&mut read).expect("a line");
        assert!(!output.try_write(&line), "lines keep their order");
    }

    #[test]
    fn a_terminal_is_never_written_by_a_thread_that_logs() {
        let controller = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR).expect("a pseudo-terminal");
        rustix::pty::grantpt(&controller).and_then(|()| rustix::pty::unlockpt(&controller)).expect("the same");
        let name = rustix::pty::ptsname(&controller, Vec::new()).expect("the same");
        let terminal = File::options().write(true).open(name.to_str().expect("a path")).expect("the other end");
        assert!(!LogOutput::file(terminal).try_write("line\n"));
    }
}
