//! What did a model's process print last before it died at its start?
//!
//! ```text
//!   process: standard error ──► pipe ──► thread here: passes all on to the server's own standard error, and keeps the last lines
//! ```
//!
//! Only what is printed while the model is imported and initialized is kept, for the error of the load. What it prints while it executes belongs to the
//! requests of some client, and other clients must not see it. So the process gets the server's own standard error back before it answers that it is
//! ready, and nothing is kept from then on. The thread ends with the last process that has the pipe.

use std::collections::VecDeque;
use std::io::{self, PipeWriter, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::limits::{LAST_WORDS_MAX, PRINTED_LINE_BYTES_MAX, PRINTED_LINES_MAX};

/// What a process that is starting has printed.
pub(crate) struct Printed(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    tail: Tail,
    /// Whether everything was read.
    is_over: bool,
    /// Whether the process has started, so that nothing is kept any more.
    is_ready: bool,
}

impl Printed {
    /// A pipe for the standard error of a process, and what will come out of it.
    pub(crate) fn pipe() -> io::Result<(Printed, PipeWriter)> {
        let (mut reader, writer) = io::pipe()?;
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let pass_on = move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                let bytes = bytes.get(..count).unwrap_or_default();
                // The server's standard error may be closed. The process must be able to continue all the same.
                let _ = io::stderr().write_all(bytes);
                let mut state = theirs.lock();
                if !state.is_ready {
                    state.tail.add(bytes);
                }
            }
            theirs.lock().is_over = true;
            theirs.ended.notify_all();
        };
        std::thread::Builder::new().name("nerite-printed".to_owned()).spawn(pass_on)?;
        Ok((Printed(shared), writer))
    }

    /// Keeps nothing any more, because the process has started.
    pub(crate) fn forget(&self) {
        let mut state = self.0.lock();
        (state.is_ready, state.tail) = (true, Tail::default());
    }

    /// The last lines of a process that died, as the end of an error. Empty if there are none.
    pub(crate) fn last_words(&self) -> String {
        let state = self.0.lock();
        let unread = |state: &mut State| !state.is_over;
        // Another process may have the pipe as well, so that it does not end.
        let waited = self.0.ended.wait_timeout_while(state, LAST_WORDS_MAX, unread);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.tail.text()
    }
}

impl Drop for Printed {
    fn drop(&mut self) {
        self.forget();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The last lines of a stream of bytes.
#[derive(Default)]
struct Tail {
    lines: VecDeque<Vec<u8>>,
    /// Whether the last line has no end yet.
    is_open: bool,
}

impl Tail {
    fn add(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if !std::mem::replace(&mut self.is_open, !piece.ends_with(b"\n")) {
                self.lines.push_back(Vec::new());
            }
            if self.lines.len() > PRINTED_LINES_MAX {
                self.lines.pop_front();
            }
            let Some(line) = self.lines.back_mut() else { continue };
            let room = PRINTED_LINE_BYTES_MAX.saturating_sub(line.len());
            let piece = piece.strip_suffix(b"\n").unwrap_or(piece);
            line.extend_from_slice(piece.get(..room).unwrap_or(piece));
        }
    }

    fn text(&self) -> String {
        let lines = self.lines.iter().map(|line| String::from_utf8_lossy(line).trim_end().to_owned());
        let lines: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
        if lines.is_empty() { String::new() } else { format!("\n\nIt printed last:\n  {}", lines.join("\n  ")) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[track_caller]
    fn check(pieces: &[&str], expect: &[&str]) {
        let mut tail = Tail::default();
        for piece in pieces {
            tail.add(piece.as_bytes());
        }
        let expect =
            if expect.is_empty() { String::new() } else { format!("\n\nIt printed last:\n  {}", expect.join("\n  ")) };
        assert_eq!(tail.text(), expect, "{pieces:?}");
    }

    #[test]
    fn the_last_lines_are_kept_however_they_arrive() {
        check(&[], &[]);
        check(&["", "\n", "\n\n"], &[]);
        check(&["a"], &["a"]);
        check(&["a\n"], &["a"]);
        check(&["a", "b", "\nc", "\n", "d\r\n"], &["ab", "c", "d"]);
        check(&["\n\na\n  b\n"], &["a", "  b"]);
    }

    #[test]
    fn lines_and_their_lengths_are_bounded() {
        let many = (0..100).fold(String::new(), |text, number| format!("{text}{number}\n"));
        let last: Vec<String> = (100 - PRINTED_LINES_MAX..100).map(|n| n.to_string()).collect();
        check(&[&many], &last.iter().map(String::as_str).collect::<Vec<_>>());
        let long = "x".repeat(3 * PRINTED_LINE_BYTES_MAX);
        check(&[&long, &long, "\nend"], &[&long[..PRINTED_LINE_BYTES_MAX], "end"]);
        check(&["\u{e9}\n"], &["\u{e9}"]);
    }

    #[test]
    fn what_comes_after_the_start_is_not_kept() {
        let (printed, mut writer) = Printed::pipe().unwrap();
        writer.write_all(b"of the start\n").unwrap();
        let both = printed.0.clone();
        while both.lock().tail.lines.is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(printed.last_words(), "\n\nIt printed last:\n  of the start");
        printed.forget();
        writer.write_all(b"of a request\n").unwrap();
        drop(writer);
        assert_eq!(printed.last_words(), "");
        assert!(both.lock().is_over);
    }
}
