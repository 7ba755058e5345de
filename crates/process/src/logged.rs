//! Which lines has a process written to the server's log in its last run?
//!
//! ```text
//!   process: Logger ──► side channel, with the number of the run ──► the supervisor logs them, and keeps the last ones
//! ```
//!
//! A line may arrive after the next run has begun, so its process says which run it belongs to.

use std::collections::VecDeque;

use crate::limits::{OUTPUT_LINE_BYTES_MAX, OUTPUT_LINES_MAX};

/// The last lines of one process, each with the number of its run. Lines from outside of a run have none.
#[derive(Debug, Default)]
pub(crate) struct LoggedLines {
    last: VecDeque<(Option<u64>, String)>,
    /// Whether no more lines will come.
    pub(crate) is_over: bool,
}

impl LoggedLines {
    /// Keeps the last lines of this text.
    pub(crate) fn add(&mut self, run: Option<u64>, text: &str) {
        let lines: Vec<&str> = text.lines().rev().take(OUTPUT_LINES_MAX).collect();
        for line in lines.into_iter().rev() {
            if self.last.len() == OUTPUT_LINES_MAX {
                self.last.pop_front();
            }
            let end = line.floor_char_boundary(OUTPUT_LINE_BYTES_MAX);
            self.last.push_back((run, line.get(..end).unwrap_or_default().to_owned()));
        }
    }

    /// The lines of this run, or all lines.
    pub(crate) fn text(&self, run: Option<u64>) -> String {
        let wanted = self.last.iter().filter(|(of, _)| run.is_none() || *of == run);
        wanted.map(|(_, line)| line.as_str()).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_to_their_own_run() {
        let mut lines = LoggedLines::default();
        lines.add(None, "of the load");
        lines.add(Some(1), "a\nb");
        lines.add(Some(2), "c");
        lines.add(Some(1), "late");
        assert_eq!(lines.text(Some(1)), "a\nb\nlate");
        assert_eq!(lines.text(Some(3)), "");
        assert_eq!(lines.text(None), "of the load\na\nb\nc\nlate");
    }

    #[test]
    fn lines_and_their_lengths_are_bounded() {
        let mut lines = LoggedLines::default();
        lines.add(Some(1), &"\u{20ac}".repeat(OUTPUT_LINE_BYTES_MAX));
        assert_eq!(lines.text(None), "\u{20ac}".repeat(OUTPUT_LINE_BYTES_MAX / 3));
        lines.add(Some(1), &"x\n".repeat(3 * OUTPUT_LINES_MAX));
        assert_eq!(lines.text(None).lines().count(), OUTPUT_LINES_MAX);
    }
}
