//! How are a child's standard output and error written to the server's log, and how much of them?
//!
//! Each line is logged with the name of its instance. A process that writes more than the log takes is slowed down: the
//! pipe fills, and its next write waits. What a process wrote before it crashed is read to the end.

use std::io::{self, PipeWriter};
use std::process::Command;
use std::thread;
use std::time::Duration;

use nerite_backend::now_ns;
use nerite_process::ProcessOutput;

use crate::limits::{LINE_BYTES_MAX, LOG_BYTES_PER_S};

const SECOND_NS: u64 = 1_000_000_000;
/// How long reading pauses when the log takes no more.
const PAUSE: Duration = Duration::from_millis(100);

/// Starts threads that read the output of `command`, and returns its standard error. The threads end with the process. Lines begin with `whose`.
///
/// Errors quote only standard error. The C library keeps standard output in a buffer, so it may arrive during the run of another request.
pub(crate) fn capture(command: &mut Command, whose: &str) -> io::Result<ProcessOutput> {
    let (_, stdout) = read_pipe(whose)?;
    let (errors, stderr) = read_pipe(whose)?;
    command.stdout(stdout).stderr(stderr);
    Ok(errors)
}

/// A pipe that a thread reads.
fn read_pipe(whose: &str) -> io::Result<(ProcessOutput, PipeWriter)> {
    let (ours, theirs) = io::pipe()?;
    let output = ProcessOutput::new(ours);
    let (read, whose) = (output.clone(), whose.to_owned());
    thread::Builder::new().name("nerite-output".to_owned()).spawn(move || hear(&read, &whose))?;
    Ok((output, theirs))
}

#[expect(clippy::disallowed_methods, reason = "the thread has no other work, and its process is to wait")]
fn hear(output: &ProcessOutput, whose: &str) {
    let (mut lines, mut budget) = (Lines::default(), Budget::new(now_ns()));
    output.read_to_end(|_, chunk| {
        let now = now_ns();
        budget.refill(now).iter().for_each(|bytes| note_left_out(whose, *bytes));
        lines.add(chunk, |line| note(whose, &mut budget, line));
        if budget.left_out > 0 {
            thread::sleep(PAUSE);
        }
    });
    lines.end(|line| note(whose, &mut budget, line));
    if budget.left_out > 0 {
        note_left_out(whose, budget.left_out);
    }
}

fn note(whose: &str, budget: &mut Budget, line: &[u8]) {
    if budget.takes(line.len()) {
        log::info!("{whose}: {}", String::from_utf8_lossy(line).trim_end());
    }
}

fn note_left_out(whose: &str, bytes: u64) {
    log::warn!(
        "{whose} wrote {bytes} bytes more, which are left out: at most {LOG_BYTES_PER_S} are logged in a second"
    );
}

/// How much may be logged.
struct Budget {
    left: usize,
    refilled_ns: u64,
    /// Bytes that were not logged since the last refill.
    left_out: u64,
}

impl Budget {
    fn new(now_ns: u64) -> Budget {
        Budget { left: LOG_BYTES_PER_S, refilled_ns: now_ns, left_out: 0 }
    }

    /// Once a second, allows as many bytes as before. Returns how many were left out until then, if any were.
    fn refill(&mut self, now_ns: u64) -> Option<u64> {
        if now_ns.saturating_sub(self.refilled_ns) < SECOND_NS {
            return None;
        }
        let left_out = self.left_out;
        *self = Budget::new(now_ns);
        (left_out > 0).then_some(left_out)
    }

    /// Whether this many bytes may be logged. Counts them.
    fn takes(&mut self, bytes: usize) -> bool {
        let takes = bytes <= self.left;
        if takes {
            self.left -= bytes;
        } else {
            self.left_out += bytes as u64;
        }
        takes
    }
}

/// The part of a line that was read so far.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    /// Adds bytes. Passes on each complete line, and each piece of a line that is too long.
    fn add(&mut self, mut chunk: &[u8], mut give: impl FnMut(&[u8])) {
        while !chunk.is_empty() {
            let room = LINE_BYTES_MAX - self.0.len();
            let end = chunk.iter().take(room).position(|byte| *byte == b'\n').map(|at| at + 1);
            let (now, rest) = chunk.split_at(end.unwrap_or(room).min(chunk.len()));
            self.0.extend_from_slice(now);
            chunk = rest;
            if end.is_some() || self.0.len() >= LINE_BYTES_MAX {
                give(&self.0);
                self.0.clear();
            }
        }
    }

    /// Passes on the rest.
    fn end(&mut self, mut give: impl FnMut(&[u8])) {
        if !self.0.is_empty() {
            give(&self.0);
            self.0.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(chunks: &[&[u8]], expected: &[&[u8]]) {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for chunk in chunks {
            lines.add(chunk, |line| found.push(line.to_vec()));
        }
        lines.end(|line| found.push(line.to_vec()));
        assert_eq!(found, expected);
    }

    #[test]
    fn lines_are_whole_and_not_too_long() {
        check(&[], &[]);
        check(&[b"a\nb", b"c\n\nd"], &[b"a\n", b"bc\n", b"\n", b"d"]);
        let long = vec![b'x'; LINE_BYTES_MAX + 3];
        check(&[&long, b"\n"], &[&long[..LINE_BYTES_MAX], b"xxx\n"]);
    }

    #[test]
    fn what_is_too_much_for_a_second_is_counted() {
        let mut budget = Budget::new(5);
        assert!(budget.takes(LOG_BYTES_PER_S) && !budget.takes(1) && !budget.takes(7));
        assert_eq!(budget.refill(SECOND_NS), None);
        assert!(!budget.takes(2));
        assert_eq!(budget.refill(SECOND_NS + 5), Some(10));
        assert!(budget.takes(1));
        assert_eq!(budget.refill(2 * SECOND_NS + 5), None);
    }
}
