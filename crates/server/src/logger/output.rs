//! Where do lines of the log go, and which thread writes them?
//!
//! ```text
//!   line ─┬─ the output takes it now ─────────────────────► file, stdout or stderr
//!         └─ it does not, or lines wait ─► queue ─► thread ─────────────┘
//! ```

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use nerite_locks::Mutex;
use nerite_watchdog::now_ns;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, SeekFrom, fstat, ftruncate, seek};
use rustix::io::{retry_on_intr, write};

use super::file::LogFile;
use super::losses::Losses;
use super::queue::{LineQueue, Share};

/// A pipe that is writable takes so many bytes without blocking: `PIPE_BUF` of pipe(7).
const WRITTEN_AT_ONCE_BYTES_MAX: usize = 4096;

/// One destination of lines.
pub(super) struct LogOutput {
    target: Target,
    /// A terminal is reported as writable if it has any space, so a write may block. The queue's thread does all writes to it.
    is_terminal: bool,
    /// Held by a thread that writes. Only the queue's thread waits for it.
    writing: Mutex<()>,
    /// Never held during a write.
    losses: Mutex<Losses>,
    queue: LineQueue,
}

/// Makes a line of the number of lines that were lost, and of the cause.
pub(super) type Notice<'n> = &'n dyn Fn(u64, &str) -> String;

/// How far a write came.
struct Written {
    bytes: usize,
    outcome: io::Result<()>,
}

enum Target {
    File(LogFile),
    Stdout,
    Stderr,
}

/// What a target writes to now.
enum Descriptor {
    File(Arc<File>),
    Stdout,
    Stderr,
}

impl LogOutput {
    pub(super) fn file(file: LogFile) -> LogOutput {
        LogOutput::new(Target::File(file))
    }

    pub(super) fn stdout() -> LogOutput {
        LogOutput::new(Target::Stdout)
    }

    pub(super) fn stderr() -> LogOutput {
        LogOutput::new(Target::Stderr)
    }

    fn new(target: Target) -> LogOutput {
        let is_terminal = target.fd().as_fd().is_terminal();
        LogOutput {
            target,
            is_terminal,
            writing: Mutex::default(),
            losses: Mutex::default(),
            queue: LineQueue::default(),
        }
    }

    /// Writes a line if that does not make this thread wait. Returns how many lines were lost, or `None` if another thread has to write it.
    pub(super) fn try_write(&self, line: &str, notice: Notice<'_>) -> Option<u64> {
        if self.is_terminal || line.len() > WRITTEN_AT_ONCE_BYTES_MAX {
            return None;
        }
        let _alone = self.try_lock()?;
        self.follow();
        // Checked under the lock, so that no line is written between two parts of what the queue's thread writes.
        if !self.queue.is_empty() || !self.is_ready() {
            return None;
        }
        let (text, prefix_bytes) = self.with_prefix(line, notice);
        if text.len() > WRITTEN_AT_ONCE_BYTES_MAX {
            return None;
        }
        Some(self.note(text.as_bytes(), prefix_bytes, self.put(text.as_bytes())))
    }

    /// Another thread writes the line. `write` makes the function that it calls with lines, and with the number of those that were lost.
    /// Returns whether the line has a place in the queue.
    pub(super) fn enqueue<W: FnMut(&str, u64) + Send + 'static>(
        &self,
        line: String,
        share: Share,
        write: impl FnOnce() -> W,
    ) -> bool {
        self.queue.put(line, share, write)
    }

    /// Waits until the output has taken the lines. Other threads do not wait meanwhile, because this one waits without the lock. Returns how many lines were
    /// lost.
    pub(super) fn write_all(&self, lines: &str, notice: Notice<'_>) -> u64 {
        // Another file is opened before the lines are written, and never between two parts of a line.
        self.follow_alone();
        let (text, prefix_bytes) = self.with_prefix(lines, notice);
        let text = text.as_bytes();
        let mut written = Written { bytes: 0, outcome: Ok(()) };
        for piece in text.chunks(WRITTEN_AT_ONCE_BYTES_MAX) {
            let of_piece = loop {
                match self.put_if_ready(piece) {
                    Some(written) => break written,
                    None => drop(self.poll(None)),
                }
            };
            written = Written { bytes: written.bytes + of_piece.bytes, outcome: of_piece.outcome };
            // The rest is not tried: a later piece that fits would begin within a line.
            if written.outcome.is_err() {
                break;
            }
        }
        self.note(text, prefix_bytes, written)
    }

    /// How many lines stderr should say are lost now, and why.
    pub(super) fn take_complaint(&self, now_ms: u64) -> Option<(u64, String)> {
        self.losses().take_due(now_ms)
    }

    /// Waits until the queue is empty, at most for `patience`.
    pub(super) fn flush(&self, patience: Duration) {
        self.queue.flush(patience);
    }

    /// Opens the file of this output anew. If it cannot be opened, lines go on to the file so far.
    pub(super) fn reopen(&self) -> io::Result<()> {
        let Target::File(file) = &self.target else { return Ok(()) };
        let _alone = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if file.reopen()? {
            self.losses().note_moved();
        }
        Ok(())
    }

    fn put_if_ready(&self, piece: &[u8]) -> Option<Written> {
        let _alone = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_ready().then(|| self.put(piece))
    }

    fn follow_alone(&self) {
        let _alone = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.follow();
    }

    /// Goes on to another file if the one so far was renamed. The caller has the lock.
    fn follow(&self) {
        if let Target::File(file) = &self.target
            && file.follow(now_ns() / 1_000_000)
        {
            self.losses().note_moved();
        }
    }

    fn losses(&self) -> MutexGuard<'_, Losses> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lines with what is to be said before them, and the bytes of that.
    fn with_prefix<'l>(&self, lines: &'l str, notice: Notice<'_>) -> (Cow<'l, str>, usize) {
        let losses = self.losses();
        if losses.is_empty() {
            return (Cow::Borrowed(lines), 0);
        }
        let prefix = losses.prefix(notice);
        let bytes = prefix.len();
        (Cow::Owned(prefix + lines), bytes)
    }

    /// Counts the lines of the text that are lost, and leaves no part of one in a file. `prefix_bytes` are at the beginning of the text and no line that can be lost.
    fn note(&self, text: &[u8], prefix_bytes: usize, Written { bytes, outcome }: Written) -> u64 {
        let whole = text.iter().take(bytes).rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if prefix_bytes > 0 && whole >= prefix_bytes {
            self.losses().note_said();
        }
        let Err(error) = outcome else { return 0 };
        let is_torn = bytes > whole && !self.take_back(bytes - whole);
        let lost = text.iter().skip(whole.max(prefix_bytes)).filter(|byte| **byte == b'\n').count() as u64;
        let mut losses = self.losses();
        losses.add(lost, error.to_string());
        if is_torn {
            losses.note_torn();
        }
        lost
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
        retry_on_intr(|| self.poll(Some(&at_once))).map_or(true, |count| count > 0)
    }

    fn poll(&self, patience: Option<&Timespec>) -> rustix::io::Result<usize> {
        poll(&mut [PollFd::new(&self.target.fd(), PollFlags::OUT)], patience)
    }

    /// A log that cannot be written is no reason to stop serving. The streams are written without the buffers of `std`, which would keep what could not be
    /// written, and write it later.
    fn put(&self, bytes: &[u8]) -> Written {
        let (fd, mut written) = (self.target.fd(), 0);
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            match retry_on_intr(|| write(&fd, rest)) {
                Ok(0) => return Written { bytes: written, outcome: Err(io::ErrorKind::WriteZero.into()) },
                Ok(count) => written += count,
                Err(error) => return Written { bytes: written, outcome: Err(error.into()) },
            }
        }
        Written { bytes: written, outcome: Ok(()) }
    }

    /// Removes the last bytes of a file, which are part of a line. Returns whether it could. It does not where another program wrote behind them.
    fn take_back(&self, count: usize) -> bool {
        let fd = self.target.fd();
        let (Ok(found), Ok(end)) = (fstat(&fd), seek(&fd, SeekFrom::Current(0))) else { return false };
        let is_last = FileType::from_raw_mode(found.st_mode).is_file() && u64::try_from(found.st_size) == Ok(end);
        let before = end.checked_sub(count as u64).filter(|_| is_last);
        before.is_some_and(|before| ftruncate(&fd, before).is_ok() && seek(&fd, SeekFrom::Start(before)).is_ok())
    }
}

impl Target {
    fn fd(&self) -> Descriptor {
        match self {
            Target::File(file) => Descriptor::File(file.now()),
            Target::Stdout => Descriptor::Stdout,
            Target::Stderr => Descriptor::Stderr,
        }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Descriptor::File(file) => file.as_fd(),
            Descriptor::Stdout => rustix::stdio::stdout(),
            Descriptor::Stderr => rustix::stdio::stderr(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use super::*;

    fn notice(lost: u64, cause: &str) -> String {
        format!("{lost} lost: {cause}\n")
    }

    #[test]
    fn a_line_is_written_only_if_the_output_takes_it_at_once() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let output = LogOutput::file(LogFile::unnamed(File::from(OwnedFd::from(writer))));
        let line = "x".repeat(WRITTEN_AT_ONCE_BYTES_MAX);
        assert_eq!(output.try_write(&format!("{line}x"), &notice), None, "it may block");
        let written = (0..1000).take_while(|_| output.try_write(&line, &notice) == Some(0)).count();
        assert!((1..1000).contains(&written), "{written}: a pipe is full at some point");
        let mut read = vec![0; line.len()];
        reader.read_exact(&mut read).expect("a line");
        assert_eq!(output.try_write(&line, &notice), Some(0));
        let (_go_on, held) = std::sync::mpsc::channel::<()>();
        output.queue.put("waits".to_owned(), Share::Whole, move || move |_: &str, _: u64| _ = held.recv());
        reader.read_exact(&mut read).expect("a line");
        assert_eq!(output.try_write(&line, &notice), None, "lines keep their order");
    }

    #[test]
    fn a_terminal_is_never_written_by_a_thread_that_logs() {
        let controller = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR).expect("a pseudo-terminal");
        rustix::pty::grantpt(&controller).and_then(|()| rustix::pty::unlockpt(&controller)).expect("the same");
        let name = rustix::pty::ptsname(&controller, Vec::new()).expect("the same");
        let terminal = File::options().write(true).open(name.to_str().expect("a path")).expect("the other end");
        assert_eq!(LogOutput::file(LogFile::unnamed(terminal)).try_write("line\n", &notice), None);
    }

    fn failed(bytes: usize) -> Written {
        Written { bytes, outcome: Err(io::Error::other("full")) }
    }

    /// An output to a file, and what is in the file.
    fn to_file() -> (LogOutput, impl Fn() -> String) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let output = File::options().append(true).open(file.path()).expect("the file");
        (LogOutput::file(LogFile::unnamed(output)), move || std::fs::read_to_string(file.path()).expect("text"))
    }

    #[test]
    fn a_line_that_does_not_fit_leaves_nothing_and_is_said_with_the_next() {
        let (output, text) = to_file();
        assert_eq!(output.try_write("one\n", &notice), Some(0));
        // As if the disk had taken so much of these lines.
        let lines = b"two\nthree\nfour\n";
        let _ = output.put(&lines[..7]);
        assert_eq!(output.note(lines, 0, failed(7)), 2);
        assert_eq!(text(), "one\ntwo\n");
        assert_eq!(output.take_complaint(0), Some((2, "full".to_owned())));
        assert_eq!(output.try_write("five\n", &notice), Some(0));
        assert_eq!(output.try_write("six\n", &notice), Some(0));
        assert_eq!(text(), "one\ntwo\n2 lost: full\nfive\nsix\n");
    }

    #[test]
    fn a_line_that_cannot_be_taken_back_is_ended_before_the_next() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let output = LogOutput::file(LogFile::unnamed(File::from(OwnedFd::from(writer))));
        let _ = output.put(b"on");
        assert_eq!(output.note(b"one\n", 0, failed(2)), 1);
        // The notice has no room either.
        let (next, prefix_bytes) = output.with_prefix("two\n", &notice);
        assert_eq!(output.note(next.as_bytes(), prefix_bytes, failed(0)), 1);
        assert_eq!(output.write_all("three\n", &notice), 0);
        drop(output);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("text");
        assert_eq!(text, "on\n2 lost: full\nthree\n");
    }

    #[test]
    fn a_full_disk_loses_lines_and_says_so() {
        let output = LogOutput::file(LogFile::open("/dev/full".as_ref()).expect("a device"));
        assert_eq!(output.try_write("one\n", &notice), Some(1));
        assert_eq!(output.write_all(&"x\n".repeat(9000), &notice), 9000);
        let (lost, cause) = output.take_complaint(0).expect("due");
        assert_eq!((lost, cause.contains("No space left")), (9001, true), "{cause}");
    }
}
