//! What did a process write last before it ended?
//!
//! ```text
//!   process: standard error ──► pipe ──► a thread of the server: passes it on, and keeps the last bytes
//!
//!   0 ··········· position at which the last run began ··········· end
//!                                              └── the error of the run ──┘
//! ```
//!
//! The error of a run goes to its clients. It tells only what the process wrote after the run began, because the bytes before may be about requests of
//! other clients. A position counts the bytes that are still in the pipe as well, so it does not depend on how soon the thread reads.

use std::collections::VecDeque;
use std::io::{self, PipeReader, Read};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::Duration;

use nerite_locks::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, ioctl_fionread};

use crate::limits::{
    OUTPUT_BYTES_KEPT, OUTPUT_LINE_BYTES_MAX, OUTPUT_LINES_MAX, OUTPUT_READ_MAX, RUN_OUTPUT_BYTES_MAX,
};

/// The most bytes that are read at once: what a pipe holds.
const READ_BYTES: usize = 64 << 10;

/// The output of one process.
#[derive(Clone)]
pub struct ProcessOutput(Arc<Shared>);

struct Shared {
    pipe: PipeReader,
    /// The longest wait of an error for what the process has written.
    wait_max: Duration,
    state: Mutex<State>,
    /// Notified when the thread has passed something on.
    progress: Condvar,
}

#[derive(Default)]
struct State {
    /// The last bytes that were read.
    last: VecDeque<u8>,
    /// How many bytes were read.
    read: u64,
    /// How many of them were passed on.
    passed_on: u64,
    /// Whether everything was read.
    is_over: bool,
    /// The position at which the last run began. `None` if the process had several requests then.
    run: Option<u64>,
}

impl ProcessOutput {
    /// The output that comes out of this pipe.
    pub fn new(pipe: PipeReader) -> ProcessOutput {
        ProcessOutput::waiting(pipe, OUTPUT_READ_MAX)
    }

    pub(crate) fn waiting(pipe: PipeReader, wait_max: Duration) -> ProcessOutput {
        ProcessOutput(Arc::new(Shared { pipe, wait_max, state: Mutex::default(), progress: Condvar::new() }))
    }

    /// Reads until no process has the pipe any more. Calls `pass_on` with each part. Only one thread may call this, once.
    pub fn read_to_end(&self, mut pass_on: impl FnMut(&[u8])) {
        let mut bytes = vec![0; READ_BYTES];
        loop {
            let part = match self.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => bytes.get(..count).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            pass_on(part);
            let mut state = self.0.lock();
            state.passed_on = state.read;
            drop(state);
            self.0.progress.notify_all();
        }
        self.0.lock().is_over = true;
        self.0.progress.notify_all();
    }

    /// Waits for bytes without the lock, and reads them under it. So each byte is either in the pipe or counted as read.
    fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match poll(&mut [PollFd::new(&self.0.pipe, PollFlags::IN)], None) {
            Ok(_) => {}
            Err(Errno::INTR) => return Err(io::ErrorKind::Interrupted.into()),
            Err(error) => return Err(error.into()),
        }
        let mut state = self.0.lock();
        let count = (&self.0.pipe).read(bytes)?;
        state.add(bytes.get(..count).unwrap_or_default());
        Ok(count)
    }

    /// Notes that a run begins. `is_alone`: whether the process has one request, this one.
    pub(crate) fn begin_run(&self, is_alone: bool) {
        let mut state = self.0.lock();
        state.run = is_alone.then(|| self.0.written(&state));
    }

    /// The last lines since the process started, as the end of an error. Empty if there are none.
    pub(crate) fn last_lines(&self) -> String {
        end_of_error(&self.all_passed_on().since(0), usize::MAX)
    }

    /// The same for the lines since the last run began. Empty as well if the process had several requests then.
    pub(crate) fn last_lines_of_run(&self) -> String {
        let state = self.all_passed_on();
        state.run.map(|run| end_of_error(&state.since(run), RUN_OUTPUT_BYTES_MAX)).unwrap_or_default()
    }

    /// Waits until everything that was written so far is passed on. The time is limited, because nobody may read what the server itself writes.
    pub(crate) fn wait_until_passed_on(&self) {
        drop(self.all_passed_on());
    }

    fn all_passed_on(&self) -> MutexGuard<'_, State> {
        let state = self.0.lock();
        let written = self.0.written(&state);
        let is_behind = |state: &mut State| !state.is_over && state.passed_on < written;
        let waited = self.0.progress.wait_timeout_while(state, self.0.wait_max, is_behind);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many bytes the process has written.
    fn written(&self, state: &State) -> u64 {
        state.read + ioctl_fionread(&self.pipe).unwrap_or_default()
    }
}

impl State {
    fn add(&mut self, bytes: &[u8]) {
        self.read += bytes.len() as u64;
        self.last.extend(bytes.iter().skip(bytes.len().saturating_sub(OUTPUT_BYTES_KEPT)));
        let too_many = self.last.len().saturating_sub(OUTPUT_BYTES_KEPT);
        self.last.drain(..too_many);
    }

    /// The bytes from this position on. If the first ones are not kept any more, it begins with a whole line.
    fn since(&self, position: u64) -> Vec<u8> {
        let first = self.read - self.last.len() as u64;
        let skipped = usize::try_from(position.saturating_sub(first)).unwrap_or(usize::MAX);
        let bytes: Vec<u8> = self.last.iter().skip(skipped).copied().collect();
        match bytes.iter().position(|byte| *byte == b'\n') {
            Some(end) if position < first => bytes.get(end..).unwrap_or_default().to_vec(),
            _ => bytes,
        }
    }
}

/// The last lines of the text, as the end of an error. Together they have at most `bytes_max` bytes.
fn end_of_error(bytes: &[u8], bytes_max: usize) -> String {
    let text = String::from_utf8_lossy(bytes);
    let (mut lines, mut room) = (VecDeque::new(), bytes_max);
    let written = text.rsplit(['\n', '\r']).map(str::trim_end).filter(|line| !line.is_empty());
    for line in written.take(OUTPUT_LINES_MAX).map(escaped) {
        let Some(left) = room.checked_sub(line.len()) else { break };
        room = left;
        lines.push_front(line);
    }
    if lines.is_empty() { String::new() } else { format!("\n\nIt printed last:\n  {}", Vec::from(lines).join("\n  ")) }
}

/// The beginning of a line, with its control characters escaped as in the log.
fn escaped(line: &str) -> String {
    let mut escaped = String::new();
    for character in line.chars() {
        let piece = match character {
            '\t' => "\t".to_owned(),
            control if control.is_control() => format!("\\u{:04x}", u32::from(control)),
            other => other.to_string(),
        };
        if escaped.len() + piece.len() > OUTPUT_LINE_BYTES_MAX {
            break;
        }
        escaped.push_str(&piece);
    }
    escaped
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::{PipeWriter, Write};

    use super::*;

    fn last(lines: &[&str]) -> String {
        if lines.is_empty() { String::new() } else { format!("\n\nIt printed last:\n  {}", lines.join("\n  ")) }
    }

    #[track_caller]
    fn check(pieces: &[&str], expect: &[&str]) {
        let mut state = State::default();
        for piece in pieces {
            state.add(piece.as_bytes());
        }
        assert_eq!(end_of_error(&state.since(0), usize::MAX), last(expect), "{pieces:?}");
    }

    #[test]
    fn the_last_lines_are_kept_however_they_arrive() {
        check(&[], &[]);
        check(&["", "\n", "\n\n"], &[]);
        check(&["a"], &["a"]);
        check(&["a\n"], &["a"]);
        check(&["a", "b", "\nc", "\n", "d\r\n"], &["ab", "c", "d"]);
        check(&["\n\na\n  b\n"], &["a", "  b"]);
        check(&["10%\r20%\rdone\n"], &["10%", "20%", "done"]);
    }

    #[test]
    fn lines_and_their_lengths_are_bounded() {
        let many = (0..100).fold(String::new(), |text, number| format!("{text}{number}\n"));
        let kept: Vec<String> = (100 - OUTPUT_LINES_MAX..100).map(|n| n.to_string()).collect();
        check(&[&many], &kept.iter().map(String::as_str).collect::<Vec<_>>());
        let long = "x".repeat(3 * OUTPUT_LINE_BYTES_MAX);
        check(&[&long, &long, "\nend"], &[&long[..OUTPUT_LINE_BYTES_MAX], "end"]);
        let wide = "\u{20ac}".repeat(OUTPUT_LINE_BYTES_MAX);
        check(&[&wide], &[&"\u{20ac}".repeat(OUTPUT_LINE_BYTES_MAX / 3)]);
        let longest = "y".repeat(OUTPUT_BYTES_KEPT);
        check(&["a\n", &longest, "\nend"], &["end"]);
        let lines = format!("{}\n", "z".repeat(RUN_OUTPUT_BYTES_MAX / 4)).repeat(OUTPUT_LINES_MAX);
        assert_eq!(end_of_error(lines.as_bytes(), RUN_OUTPUT_BYTES_MAX).matches("  z").count(), 4);
    }

    #[test]
    fn control_characters_are_escaped() {
        check(&["\x1b[31mred\x1b[0m\tend\u{85}\u{7f}"], &["\\u001b[31mred\\u001b[0m\tend\\u0085\\u007f"]);
        let mut state = State::default();
        state.add(b"half \xe2\x82");
        assert_eq!(end_of_error(&state.since(0), usize::MAX), last(&["half \u{fffd}"]));
    }

    #[test]
    fn only_what_came_after_a_position_is_shown() {
        let mut state = State::default();
        state.add(b"of another client, ");
        let position = state.read;
        state.add(b"of this one\n");
        assert_eq!(state.since(position), b"of this one\n");
        state.add(&b"z".repeat(OUTPUT_BYTES_KEPT));
        assert_eq!(state.since(position).len(), OUTPUT_BYTES_KEPT, "no line has an end");
        assert_eq!(state.since(state.read), b"");
    }

    /// An output whose thread reads nothing before `go` is called, and the process's end of the pipe.
    fn output() -> (ProcessOutput, PipeWriter) {
        let (pipe, writer) = io::pipe().unwrap();
        (ProcessOutput::waiting(pipe, Duration::from_mins(1)), writer)
    }

    fn go(output: &ProcessOutput) -> std::thread::JoinHandle<Vec<u8>> {
        let output = output.clone();
        let read = move || {
            let mut all = Vec::new();
            output.read_to_end(|part| all.extend_from_slice(part));
            all
        };
        std::thread::Builder::new().spawn(read).unwrap()
    }

    #[test]
    fn a_run_is_told_what_came_after_its_begin_though_nothing_was_read_by_then() {
        let (output, mut writer) = output();
        writer.write_all(b"of the start\n").unwrap();
        output.begin_run(true);
        writer.write_all(b"of the run\n").unwrap();
        let reader = go(&output);
        // The pipe is still open, so this waits for the bytes, and not for its end.
        assert_eq!(output.last_lines_of_run(), last(&["of the run"]));
        assert_eq!(output.last_lines(), last(&["of the start", "of the run"]));
        output.begin_run(true);
        assert_eq!(output.last_lines_of_run(), "");
        drop(writer);
        assert_eq!(reader.join().unwrap(), b"of the start\nof the run\n", "everything is passed on");
    }

    #[test]
    fn a_run_beside_others_is_told_nothing_until_one_is_alone_again() {
        let (output, mut writer) = output();
        let reader = go(&output);
        for (is_alone, expect) in [(true, last(&["line"])), (false, String::new()), (true, last(&["line"]))] {
            output.begin_run(is_alone);
            writer.write_all(b"line\n").unwrap();
            assert_eq!(output.last_lines_of_run(), expect, "{is_alone}");
        }
        drop(writer);
        reader.join().unwrap();
    }

    #[test]
    fn output_that_nobody_reads_delays_an_error_for_a_limited_time() {
        let (pipe, mut writer) = io::pipe().unwrap();
        let output = ProcessOutput::new(pipe);
        writer.write_all(b"unread\n").unwrap();
        output.begin_run(true);
        writer.write_all(b"unread as well\n").unwrap();
        assert_eq!(output.last_lines_of_run(), "");
    }
}
