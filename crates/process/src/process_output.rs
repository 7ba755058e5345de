//! What did a process write last before it ended?
//!
//! ```text
//!   process: standard output ─► pipe ─┐
//!            standard error ──► pipe ─┴─► a thread of the server: logs it (`printed.rs`), and keeps the last bytes of each
//!            lines for the log ─► side channel ─► the supervisor: keeps the last lines (`logged.rs`)
//!
//!   0 ··········· position at which the last run began ··········· end
//!                                              └── the error of the run ──┘
//! ```
//!
//! The error of a run goes to its clients. It has only lines that the process wrote after the run began, because earlier lines may be about requests
//! of other clients. A position also counts the bytes that are still in the pipe, so it does not depend on how soon the thread reads. The order in
//! which a process wrote to different pipes is not known. Standard error comes last, because it has tracebacks and stacks, and the limit on the size
//! of an error keeps the last lines.

use std::collections::VecDeque;
use std::io::{self, PipeReader, Read};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::Duration;

use nerite_locks::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, ioctl_fionread};

use crate::limits::{OUTPUT_BYTES_KEPT, OUTPUT_LINE_BYTES_MAX, OUTPUT_LINES_MAX, RUN_OUTPUT_BYTES_MAX};

/// The most bytes that are read at once: what a pipe holds.
const READ_BYTES: usize = 64 << 10;

/// The text in place of the lines of a run that has requests of several clients.
const NOT_TOLD: &str =
    "\n\nWhat it printed last is in the server's log only, because it had requests of several clients.";

/// The output of one process.
#[derive(Clone)]
pub struct ProcessOutput(Arc<Shared>);

/// The stream to which a process wrote something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// A run of a model in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunOutput {
    /// The number of its first request.
    pub(crate) number: u64,
    /// Whether the error of the run has the lines: all requests that the process has are of one client.
    pub(crate) is_told: bool,
}

struct Shared {
    /// The pipes, in the order in which an error has their lines.
    pipes: Vec<(Stream, PipeReader)>,
    /// The longest wait of an error for what the process has written.
    wait_max: Duration,
    state: Mutex<State>,
    /// Notified when the thread has passed something on.
    progress: Condvar,
}

#[derive(Default)]
struct State {
    /// The states of the pipes, in the same order.
    streams: Vec<StreamState>,
    /// The last run that began.
    run: Option<RunOutput>,
}

#[derive(Clone, Default)]
struct StreamState {
    /// The last bytes that were read.
    last: VecDeque<u8>,
    /// How many bytes were read.
    read: u64,
    /// How many of them were passed on.
    passed_on: u64,
    /// Whether everything was read.
    is_over: bool,
    /// The position at which the last run began.
    run: u64,
}

impl ProcessOutput {
    /// The output that comes out of these pipes. An error waits for it at most this long.
    pub(crate) fn waiting(pipes: Vec<(Stream, PipeReader)>, wait_max: Duration) -> ProcessOutput {
        let state = State { streams: vec![StreamState::default(); pipes.len()], run: None };
        ProcessOutput(Arc::new(Shared { pipes, wait_max, state: Mutex::new(state), progress: Condvar::new() }))
    }

    /// Reads until no process has the pipes open any more. Calls `pass_on` with each part. This must be called only once.
    pub(crate) fn read_to_end(&self, mut pass_on: impl FnMut(Stream, &[u8])) {
        let mut bytes = vec![0; READ_BYTES];
        while let Some(ready) = self.wait() {
            for at in ready {
                let Some((stream, pipe)) = self.0.pipes.get(at) else { continue };
                let part = match self.read(at, pipe, &mut bytes) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Ok(0) | Err(_) => {
                        self.0.change(at, |state| state.is_over = true);
                        continue;
                    }
                    Ok(count) => bytes.get(..count).unwrap_or_default(),
                };
                pass_on(*stream, part);
                self.0.change(at, |state| state.passed_on = state.read);
            }
        }
        self.0.lock().streams.iter_mut().for_each(|stream| stream.is_over = true);
        self.0.progress.notify_all();
    }

    /// Waits for bytes or the end of a pipe. Returns the indexes of the pipes that have one of them. `None` if all pipes have ended.
    fn wait(&self) -> Option<Vec<usize>> {
        let state = self.0.lock();
        let open: Vec<usize> = (0..).zip(&state.streams).filter(|(_, one)| !one.is_over).map(|(at, _)| at).collect();
        drop(state);
        let pipes = open.iter().filter_map(|at| self.0.pipes.get(*at));
        let mut polled: Vec<_> = pipes.map(|(_, pipe)| PollFd::new(pipe, PollFlags::IN)).collect();
        if polled.is_empty() {
            return None;
        }
        match poll(&mut polled, None) {
            Ok(_) => {}
            Err(Errno::INTR) => return Some(Vec::new()),
            Err(_) => return None,
        }
        let ready = open.into_iter().zip(&polled).filter(|(_, one)| !one.revents().is_empty());
        Some(ready.map(|(at, _)| at).collect())
    }

    /// Reads available bytes under the lock, so that each byte is either in the pipe or counted as read.
    fn read(&self, at: usize, mut pipe: &PipeReader, bytes: &mut [u8]) -> io::Result<usize> {
        let mut state = self.0.lock();
        let count = pipe.read(bytes)?;
        if let Some(stream) = state.streams.get_mut(at) {
            stream.add(bytes.get(..count).unwrap_or_default());
        }
        Ok(count)
    }

    /// Notes that a run begins.
    pub(crate) fn begin_run(&self, run: RunOutput) {
        let mut state = self.0.lock();
        state.run = Some(run);
        for (stream, (_, pipe)) in state.streams.iter_mut().zip(&self.0.pipes) {
            stream.run = stream.written(pipe);
        }
    }

    /// The last lines since the process started, and those that it wrote to the log, as the end of an error. Empty if there are none.
    pub(crate) fn last_lines(&self, logged: &str) -> String {
        end_of_error(&self.all_passed_on().since(logged, |_| 0), usize::MAX)
    }

    /// As [`ProcessOutput::last_lines`], for the lines since the last run began. `logged` returns the lines that a run wrote to the log. If the
    /// process had requests of several clients, the text has no lines and says why.
    pub(crate) fn last_lines_of_run(&self, logged: impl FnOnce(u64) -> String) -> String {
        let state = self.all_passed_on();
        let Some(run) = state.run else { return String::new() };
        let lines = end_of_error(&state.since(&logged(run.number), |stream| stream.run), RUN_OUTPUT_BYTES_MAX);
        if run.is_told || lines.is_empty() { lines } else { NOT_TOLD.to_owned() }
    }

    /// Waits until everything that was written so far is passed on. The wait is limited, because passing on blocks if nobody reads the server's own
    /// output.
    pub(crate) fn wait_until_passed_on(&self) {
        drop(self.all_passed_on());
    }

    fn all_passed_on(&self) -> MutexGuard<'_, State> {
        let state = self.0.lock();
        let written: Vec<u64> =
            state.streams.iter().zip(&self.0.pipes).map(|(one, (_, pipe))| one.written(pipe)).collect();
        let is_behind = |state: &mut State| {
            state.streams.iter().zip(&written).any(|(one, written)| !one.is_over && one.passed_on < *written)
        };
        let waited = self.0.progress.wait_timeout_while(state, self.0.wait_max, is_behind);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state of a pipe, and wakes the waiting threads.
    fn change(&self, at: usize, change: impl FnOnce(&mut StreamState)) {
        self.lock().streams.get_mut(at).map(change);
        self.progress.notify_all();
    }
}

impl State {
    /// What was written from these positions on. The lines of the log come before the last pipe.
    fn since(&self, logged: &str, position: impl Fn(&StreamState) -> u64) -> Vec<u8> {
        let mut parts: Vec<Vec<u8>> = self.streams.iter().map(|stream| stream.since(position(stream))).collect();
        parts.insert(parts.len().saturating_sub(1), logged.as_bytes().to_vec());
        parts.join(&b'\n')
    }
}

impl StreamState {
    /// How many bytes the process has written.
    fn written(&self, pipe: &PipeReader) -> u64 {
        self.read + ioctl_fionread(pipe).unwrap_or_default()
    }

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
    for line in written.take(OUTPUT_LINES_MAX).map(|line| escaped(line, OUTPUT_LINE_BYTES_MAX)) {
        let Some(left) = room.checked_sub(line.len()) else { break };
        room = left;
        lines.push_front(line);
    }
    if lines.is_empty() { String::new() } else { format!("\n\nIt printed last:\n  {}", Vec::from(lines).join("\n  ")) }
}

/// The beginning of a line, with its control characters escaped as in the log: at most `bytes_max` bytes.
pub(crate) fn escaped(line: &str, bytes_max: usize) -> String {
    let mut escaped = String::new();
    for character in line.chars() {
        let piece = match character {
            '\t' => "\t".to_owned(),
            control if control.is_control() => format!("\\u{:04x}", u32::from(control)),
            other => other.to_string(),
        };
        if escaped.len() + piece.len() > bytes_max {
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
    use crate::limits::OUTPUT_READ_MAX;

    fn last(lines: &[&str]) -> String {
        if lines.is_empty() { String::new() } else { format!("\n\nIt printed last:\n  {}", lines.join("\n  ")) }
    }

    #[track_caller]
    fn check(pieces: &[&str], expect: &[&str]) {
        let mut state = StreamState::default();
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
        let mut state = StreamState::default();
        state.add(b"half \xe2\x82");
        assert_eq!(end_of_error(&state.since(0), usize::MAX), last(&["half \u{fffd}"]));
    }

    #[test]
    fn only_what_came_after_a_position_is_shown() {
        let mut state = StreamState::default();
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
        (ProcessOutput::waiting(vec![(Stream::Error, pipe)], Duration::from_mins(1)), writer)
    }

    fn begin(output: &ProcessOutput, is_told: bool) {
        output.begin_run(RunOutput { number: 7, is_told });
    }

    fn last_of_run(output: &ProcessOutput) -> String {
        output.last_lines_of_run(|number| if number == 7 { String::new() } else { "of another run".to_owned() })
    }

    fn go(output: &ProcessOutput) -> std::thread::JoinHandle<Vec<u8>> {
        let output = output.clone();
        let read = move || {
            let mut all = Vec::new();
            output.read_to_end(|_, part| all.extend_from_slice(part));
            all
        };
        std::thread::Builder::new().spawn(read).unwrap()
    }

    #[test]
    fn a_run_is_told_what_came_after_its_begin_though_nothing_was_read_by_then() {
        let (output, mut writer) = output();
        writer.write_all(b"of the start\n").unwrap();
        begin(&output, true);
        writer.write_all(b"of the run\n").unwrap();
        let reader = go(&output);
        // The pipe is still open, so this waits for the bytes and not for the end of the pipe.
        assert_eq!(last_of_run(&output), last(&["of the run"]));
        assert_eq!(output.last_lines(""), last(&["of the start", "of the run"]));
        begin(&output, true);
        assert_eq!(last_of_run(&output), "");
        drop(writer);
        assert_eq!(reader.join().unwrap(), b"of the start\nof the run\n", "everything is passed on");
    }

    #[test]
    fn a_run_of_several_clients_is_told_nothing_until_one_is_alone_again() {
        let (output, mut writer) = output();
        let reader = go(&output);
        for (is_told, expect) in [(true, last(&["line"])), (false, NOT_TOLD.to_owned()), (true, last(&["line"]))] {
            begin(&output, is_told);
            assert_eq!(last_of_run(&output), "");
            writer.write_all(b"line\n").unwrap();
            assert_eq!(last_of_run(&output), expect, "{is_told}");
        }
        drop(writer);
        reader.join().unwrap();
    }

    #[test]
    fn output_that_nobody_reads_delays_an_error_for_a_limited_time() {
        let (pipe, mut writer) = io::pipe().unwrap();
        let output = ProcessOutput::waiting(vec![(Stream::Error, pipe)], OUTPUT_READ_MAX);
        writer.write_all(b"unread\n").unwrap();
        begin(&output, true);
        writer.write_all(b"unread as well\n").unwrap();
        assert_eq!(last_of_run(&output), "");
    }

    #[test]
    fn standard_error_is_told_after_standard_output_and_the_lines_of_the_log() {
        let [(out, mut to_out), (error, mut to_error)] = [io::pipe().unwrap(), io::pipe().unwrap()];
        let output =
            ProcessOutput::waiting(vec![(Stream::Output, out), (Stream::Error, error)], Duration::from_mins(1));
        to_out.write_all(b"earlier\n").unwrap();
        begin(&output, true);
        to_error.write_all(b"of a crash\n").unwrap();
        to_out.write_all(b"printed").unwrap();
        let read = output.clone();
        let reader = move || {
            let mut all = [Vec::new(), Vec::new()];
            read.read_to_end(|stream, part| all[usize::from(stream == Stream::Error)].extend_from_slice(part));
            all
        };
        let reader = std::thread::Builder::new().spawn(reader).unwrap();
        let logged = |number: u64| format!("logged in {number}");
        assert_eq!(output.last_lines_of_run(logged), last(&["printed", "logged in 7", "of a crash"]));
        // One pipe is at its end, and the other one is still read.
        drop(to_error);
        to_out.write_all(b" more\n").unwrap();
        assert_eq!(output.last_lines("logged"), last(&["earlier", "printed more", "logged", "of a crash"]));
        drop(to_out);
        assert_eq!(reader.join().unwrap(), [b"earlier\nprinted more\n".to_vec(), b"of a crash\n".to_vec()]);
    }
}
