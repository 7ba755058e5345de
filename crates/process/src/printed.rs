//! How do the lines that a process prints get into the server's log, and how fast?
//!
//! ```text
//!   process: standard output, standard error ──► two pipes ──► thread here: each line is a line of the log
//!                                                              ProcessOutput: keeps the last ones, for errors
//! ```
//!
//! Each line is logged with the name of its process. A process that prints faster than [`PRINTED_BYTES_PER_S`] waits: its pipe fills. No line is left out,
//! and what a process printed before it died is read to the end. The thread ends with the last process that has the pipes.

use std::io::{self, PipeWriter};
use std::thread;
use std::time::Duration;

use nerite_backend::now_ns;

use crate::limits::{OUTPUT_READ_MAX, PRINTED_BYTES_PER_S, PRINTED_LINE_BYTES, PRINTED_LINE_BYTES_MAX};
use crate::process_name::ProcessName;
use crate::process_output::{ProcessOutput, Stream};

/// The target of lines that processes of models printed. Their values `model`, `instance` and `stream` say where they are from.
pub const PRINTED_TARGET: &str = "nerite_printed";

const SECOND_NS: u64 = 1_000_000_000;
/// Time between two warnings that a process has to wait.
const WARNED_EVERY_NS: u64 = 60 * SECOND_NS;

/// The writing ends for the standard output and error of a process.
pub struct PrintedPipes {
    /// The output that errors of the process quote.
    pub quoted: ProcessOutput,
    /// For its standard output.
    pub output: PipeWriter,
    /// For its standard error.
    pub error: PipeWriter,
}

impl PrintedPipes {
    /// Pipes for a process whose errors quote both streams.
    pub fn quoting_both(name: &ProcessName) -> io::Result<PrintedPipes> {
        let (output_reader, output) = io::pipe()?;
        let (error_reader, error) = io::pipe()?;
        let pipes = vec![(Stream::Output, output_reader), (Stream::Error, error_reader)];
        Ok(PrintedPipes { quoted: logged(pipes, name)?, output, error })
    }

    /// Pipes for a process whose errors quote only standard error. The C library keeps standard output in a buffer, so it may arrive during the run of another
    /// request.
    pub fn quoting_error(name: &ProcessName) -> io::Result<PrintedPipes> {
        let (output_reader, output) = io::pipe()?;
        let (error_reader, error) = io::pipe()?;
        logged(vec![(Stream::Output, output_reader)], name)?;
        Ok(PrintedPipes { quoted: logged(vec![(Stream::Error, error_reader)], name)?, output, error })
    }
}

/// The output of these pipes, which a thread logs.
fn logged(pipes: Vec<(Stream, io::PipeReader)>, name: &ProcessName) -> io::Result<ProcessOutput> {
    let output = ProcessOutput::waiting(pipes, OUTPUT_READ_MAX);
    let (read, name) = (output.clone(), name.clone());
    thread::Builder::new().name("nerite-printed".to_owned()).spawn(move || log_lines(&read, &name))?;
    Ok(output)
}

#[expect(clippy::disallowed_methods, reason = "the thread has no other work, and its process is to wait")]
fn log_lines(output: &ProcessOutput, name: &ProcessName) {
    let (mut printed, mut errors, mut pace) = (Lines::default(), Lines::default(), Pace::new(now_ns()));
    output.read_to_end(|stream, part| {
        let lines = if stream == Stream::Output { &mut printed } else { &mut errors };
        let mut spent = 0;
        lines.add(part, |line| {
            spent += line.len() + PRINTED_LINE_BYTES;
            log_line(name, stream, line);
        });
        let Some(pause) = pace.pause(spent, now_ns()) else { return };
        if pace.is_to_be_warned_of(now_ns()) {
            log::warn!("{name} prints more than {PRINTED_BYTES_PER_S} bytes in a second, and has to wait");
        }
        thread::sleep(pause);
    });
    printed.end(|line| log_line(name, Stream::Output, line));
    errors.end(|line| log_line(name, Stream::Error, line));
}

fn log_line(name: &ProcessName, stream: Stream, line: &[u8]) {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end_matches(['\n', '\r']);
    let (model, stream) = (name.model(), if stream == Stream::Output { "stdout" } else { "stderr" });
    match name.instance() {
        Some(instance) => {
            log::info!(target: PRINTED_TARGET, model = model, instance = instance, stream = stream; "{text}");
        }
        None => log::info!(target: PRINTED_TARGET, model = model, stream = stream; "{text}"),
    }
}

/// How long a process has to wait that prints too fast.
struct Pace {
    /// When what was printed so far would be allowed, in ns.
    allowed_ns: u64,
    warned_ns: Option<u64>,
}

impl Pace {
    fn new(now_ns: u64) -> Pace {
        Pace { allowed_ns: now_ns.saturating_sub(SECOND_NS), warned_ns: None }
    }

    /// Counts bytes that were printed. Returns how long nothing more may be read. Bytes of one second are allowed at once.
    fn pause(&mut self, bytes: usize, now_ns: u64) -> Option<Duration> {
        let took_ns = bytes as u64 * SECOND_NS / PRINTED_BYTES_PER_S as u64;
        self.allowed_ns = self.allowed_ns.max(now_ns.saturating_sub(SECOND_NS)) + took_ns;
        let pause_ns = self.allowed_ns.saturating_sub(now_ns);
        (pause_ns > 0).then(|| Duration::from_nanos(pause_ns))
    }

    /// Whether the log should say now that the process waits.
    fn is_to_be_warned_of(&mut self, now_ns: u64) -> bool {
        let is_due = self.warned_ns.is_none_or(|at| now_ns >= at + WARNED_EVERY_NS);
        if is_due {
            self.warned_ns = Some(now_ns);
        }
        is_due
    }
}

/// The part of a line that was read so far.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    /// Adds bytes. Passes on each complete line, and each piece of a line that is too long.
    fn add(&mut self, mut chunk: &[u8], mut give: impl FnMut(&[u8])) {
        while !chunk.is_empty() {
            let room = PRINTED_LINE_BYTES_MAX - self.0.len();
            let end = chunk.iter().take(room).position(|byte| *byte == b'\n').map(|at| at + 1);
            let (now, rest) = chunk.split_at(end.unwrap_or(room).min(chunk.len()));
            self.0.extend_from_slice(now);
            chunk = rest;
            if end.is_some() || self.0.len() >= PRINTED_LINE_BYTES_MAX {
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
        let long = vec![b'x'; PRINTED_LINE_BYTES_MAX + 3];
        check(&[&long, b"\n"], &[&long[..PRINTED_LINE_BYTES_MAX], b"xxx\n"]);
    }

    #[test]
    fn a_process_may_print_so_much_at_once_and_then_waits() {
        let begun = 5 * SECOND_NS;
        let mut pace = Pace::new(begun);
        assert_eq!(pace.pause(PRINTED_BYTES_PER_S, begun), None);
        assert_eq!(pace.pause(PRINTED_BYTES_PER_S / 2, begun), Some(Duration::from_millis(500)));
        assert_eq!(pace.pause(PRINTED_BYTES_PER_S / 4, begun + SECOND_NS / 2), Some(Duration::from_millis(250)));
        let later = begun + 60 * SECOND_NS;
        assert_eq!(pace.pause(PRINTED_BYTES_PER_S, later), None, "a rest allows no more than one second does");
        assert!(pace.pause(PRINTED_BYTES_PER_S / 4, later).is_some());
        assert!(
            pace.is_to_be_warned_of(later)
                && !pace.is_to_be_warned_of(later + 1)
                && pace.is_to_be_warned_of(later + WARNED_EVERY_NS)
        );
    }
}
