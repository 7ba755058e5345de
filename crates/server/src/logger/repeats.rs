//! Which lines are summed up in one line, because they repeat?
//!
//! A line that was written [`WRITTEN_MAX`] times within [`WINDOW_MS`] is counted instead. When the window has ended, one line says how often it
//! came. Time is passed in.

use std::collections::HashMap;

use log::Level;

/// Times that a line is written in a window.
pub(super) const WRITTEN_MAX: u64 = 5;
/// How long a window lasts.
pub(super) const WINDOW_MS: u64 = 10_000;
/// The most different lines whose repetitions are counted at a time. Further lines are written.
const LINES_MAX: usize = 256;

/// The lines of the last seconds.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    lines: HashMap<String, Seen>,
}

#[derive(Debug)]
struct Seen {
    level: Level,
    place: String,
    since_ms: u64,
    times: u64,
}

/// What is done with a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is written.
    Write,
    /// It is written, and is the last for now.
    WriteLast,
    /// It is counted. `is_first`: no other of its window was.
    Count {
        /// Whether [`Repeats::take_ended`] must be called when the window has ended.
        is_first: bool,
    },
}

/// A line that was counted in a window that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Counted {
    /// Its level.
    pub level: Level,
    /// The place in the code that it comes from.
    pub place: String,
    /// The line.
    pub line: String,
    /// How often it came and was not written.
    pub times: u64,
}

impl Repeats {
    /// Counts a line, and decides whether it is written. The caller must take windows that have ended before.
    pub(super) fn count(&mut self, level: Level, place: &str, line: &str, now_ms: u64) -> Verdict {
        if let Some(seen) = self.lines.get_mut(line) {
            seen.times += 1;
            return match seen.times {
                ..WRITTEN_MAX => Verdict::Write,
                WRITTEN_MAX => Verdict::WriteLast,
                times => Verdict::Count { is_first: times == WRITTEN_MAX + 1 },
            };
        }
        if self.lines.len() < LINES_MAX {
            let seen = Seen { level, place: place.to_owned(), since_ms: now_ms, times: 1 };
            self.lines.insert(line.to_owned(), seen);
        }
        Verdict::Write
    }

    /// Whether any line is counted.
    pub(super) fn counts(&self) -> bool {
        self.lines.values().any(|seen| seen.times > WRITTEN_MAX)
    }

    /// Forgets the lines whose windows have ended, and returns those that were counted.
    pub(super) fn take_ended(&mut self, now_ms: u64) -> Vec<Counted> {
        if self.lines.values().all(|seen| now_ms < seen.since_ms + WINDOW_MS) {
            return Vec::new();
        }
        let ended = self.lines.extract_if(|_, seen| now_ms >= seen.since_ms + WINDOW_MS);
        let mut counted: Vec<Counted> = ended
            .filter(|(_, seen)| seen.times > WRITTEN_MAX)
            .map(|(line, Seen { level, place, times, .. })| Counted { level, place, line, times: times - WRITTEN_MAX })
            .collect();
        counted.sort_by(|one, other| one.line.cmp(&other.line));
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(repeats: &mut Repeats, line: &str, now_ms: u64) -> Verdict {
        repeats.count(Level::Warn, "a.rs:1", line, now_ms)
    }

    #[test]
    fn a_line_that_repeats_is_written_a_few_times_and_then_counted() {
        let mut repeats = Repeats::default();
        let verdicts: Vec<_> = (0..8).map(|at| add(&mut repeats, "disk full", at)).collect();
        let count = |is_first| Verdict::Count { is_first };
        assert_eq!(verdicts[3..], [Verdict::Write, Verdict::WriteLast, count(true), count(false), count(false)]);
        assert_eq!(add(&mut repeats, "something else", 9), Verdict::Write);
        assert_eq!(repeats.take_ended(WINDOW_MS - 1), []);
        assert_eq!(
            repeats.take_ended(WINDOW_MS),
            [Counted { level: Level::Warn, place: "a.rs:1".into(), line: "disk full".into(), times: 3 }]
        );
        assert_eq!(add(&mut repeats, "disk full", WINDOW_MS), Verdict::Write, "a new window");
    }

    #[test]
    fn lines_that_differ_are_all_written_and_hold_bounded_memory() {
        let mut repeats = Repeats::default();
        for at in 0..10 * LINES_MAX {
            assert_eq!(add(&mut repeats, &format!("line {at}"), 0), Verdict::Write);
        }
        assert!(repeats.lines.len() <= LINES_MAX);
        assert_eq!(repeats.take_ended(WINDOW_MS), []);
        assert!(repeats.lines.is_empty());
    }
}
