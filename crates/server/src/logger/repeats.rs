//! Which lines are counted instead of written, because they repeat too often?
//!
//! In a window of time, a line is written [`WRITTEN_MAX`] times, and lines from one place in the code until they are [`PLACE_LINES_MAX`] or [`PLACE_BYTES_MAX`]
//! bytes: a client can put another name into each. Lines beyond that are left out and counted. When the window has ended, one line says how many. Time is passed in.

use std::collections::HashMap;

use log::Level;

/// Times that a line is written in a window.
pub(super) const WRITTEN_MAX: u64 = 5;
/// How long a window lasts.
pub(super) const WINDOW_MS: u64 = 10_000;
/// The most different lines whose repetitions are counted at a time. Further lines are only bounded by their place.
const LINES_MAX: usize = 256;
/// Lines from one place in the code that are written in a window.
pub(super) const PLACE_LINES_MAX: u64 = 100;
/// Bytes of lines from one place that are written in a window, and one line beyond.
const PLACE_BYTES_MAX: usize = 128 << 10;
/// The most places that are told apart at a time. Compiled backends bring places of their own. Further ones count as one.
const PLACES_MAX: usize = 512;
/// The most bytes that are shown of a line that was left out.
const EXAMPLE_BYTES_MAX: usize = 256;

/// The place in the code of lines whose own place is not told apart.
const OTHERS: &str = "many places";

/// The lines of the last seconds, by their text and by their place in the code.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    lines: HashMap<String, Windowed<Line>>,
    places: HashMap<String, Windowed<Place>>,
}

/// What is known of lines since their window began.
#[derive(Debug)]
struct Windowed<T> {
    /// The most severe level of those that were left out, or of the first one.
    level: Level,
    is_audit: bool,
    since_ms: u64,
    left_out: u64,
    written: T,
}

/// What was written of equal lines.
#[derive(Debug)]
struct Line {
    place: String,
    times: u64,
}

/// What was written of the lines from one place.
#[derive(Debug, Default)]
struct Place {
    lines: u64,
    bytes: usize,
    /// The beginning of the last line that was left out.
    example: String,
}

/// Where a line comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin<'l> {
    /// Its level.
    pub level: Level,
    /// Whether it is an audit line.
    pub is_audit: bool,
    /// The place in the code.
    pub place: &'l str,
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
    /// Whether it is an audit line.
    pub is_audit: bool,
    /// The place in the code that it comes from.
    pub place: String,
    /// The line. Of lines that differ, the beginning of the last one.
    pub line: String,
    /// Whether the lines differ, and have only their place in common.
    pub lines_differ: bool,
    /// How often it came and was not written.
    pub times: u64,
}

impl Repeats {
    /// Counts a line, and decides whether it is written. The caller must take windows that have ended before.
    pub(super) fn count(&mut self, origin: Origin<'_>, line: &str, now_ms: u64) -> Verdict {
        let verdict = self.count_line(origin, line, now_ms);
        if matches!(verdict, Verdict::Count { .. }) { verdict } else { self.count_place(origin, line, now_ms, verdict) }
    }

    /// Leaves out a line that would be written, if there were enough from its place.
    fn count_place(&mut self, origin: Origin<'_>, line: &str, now_ms: u64, verdict: Verdict) -> Verdict {
        let place = origin.place;
        let place = if self.places.len() < PLACES_MAX || self.places.contains_key(place) { place } else { OTHERS };
        if !self.places.contains_key(place) {
            self.places.insert(place.to_owned(), Windowed::new(origin, now_ms, Place::default()));
        }
        let Some(of_place) = self.places.get_mut(place) else { return verdict };
        let written = &mut of_place.written;
        if written.lines < PLACE_LINES_MAX && written.bytes < PLACE_BYTES_MAX {
            written.lines += 1;
            written.bytes += line.len();
            return verdict;
        }
        written.example.clear();
        written.example.push_str(&line[..line.floor_char_boundary(EXAMPLE_BYTES_MAX)]);
        of_place.leave_out(origin.level)
    }

    fn count_line(&mut self, origin: Origin<'_>, line: &str, now_ms: u64) -> Verdict {
        if let Some(seen) = self.lines.get_mut(line) {
            if seen.written.times == WRITTEN_MAX {
                return seen.leave_out(origin.level);
            }
            seen.written.times += 1;
            return if seen.written.times == WRITTEN_MAX { Verdict::WriteLast } else { Verdict::Write };
        }
        if self.lines.len() < LINES_MAX {
            let written = Line { place: origin.place.to_owned(), times: 1 };
            self.lines.insert(line.to_owned(), Windowed::new(origin, now_ms, written));
        }
        Verdict::Write
    }

    /// Whether any line is counted.
    pub(super) fn counts(&self) -> bool {
        self.lines.values().any(|seen| seen.left_out > 0) || self.places.values().any(|place| place.left_out > 0)
    }

    /// Forgets the lines whose windows have ended, and returns those that were counted.
    pub(super) fn take_ended(&mut self, now_ms: u64) -> Vec<Counted> {
        let of_line = |line, Line { place, .. }| Common { place, line, lines_differ: false };
        let of_place = |place, Place { example, .. }| Common { place, line: example, lines_differ: true };
        let mut ended = take_ended(&mut self.lines, now_ms, of_line);
        ended.extend(take_ended(&mut self.places, now_ms, of_place));
        ended
    }
}

impl<T> Windowed<T> {
    fn new(Origin { level, is_audit, .. }: Origin<'_>, now_ms: u64, written: T) -> Windowed<T> {
        Windowed { level, is_audit, since_ms: now_ms, left_out: 0, written }
    }

    /// Counts a line that is not written. The most severe one decides whether the count is shown.
    fn leave_out(&mut self, level: Level) -> Verdict {
        self.left_out += 1;
        self.level = self.level.min(level);
        Verdict::Count { is_first: self.left_out == 1 }
    }

    fn has_ended(&self, now_ms: u64) -> bool {
        now_ms >= self.since_ms + WINDOW_MS
    }
}

/// What lines that were left out have in common.
struct Common {
    place: String,
    line: String,
    lines_differ: bool,
}

/// Takes the windows that have ended out of a table. Returns those in which lines were left out, in the order of their keys.
fn take_ended<T>(
    table: &mut HashMap<String, Windowed<T>>,
    now_ms: u64,
    common: impl Fn(String, T) -> Common,
) -> Vec<Counted> {
    if !table.values().any(|window| window.has_ended(now_ms)) {
        return Vec::new();
    }
    let ended = table.extract_if(|_, window| window.has_ended(now_ms));
    let mut ended: Vec<_> = ended.filter(|(_, window)| window.left_out > 0).collect();
    ended.sort_by(|(one, _), (other, _)| one.cmp(other));
    let counted = |(key, Windowed { level, is_audit, left_out: times, written, .. })| {
        let Common { place, line, lines_differ } = common(key, written);
        Counted { level, is_audit, place, line, lines_differ, times }
    };
    ended.into_iter().map(counted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(repeats: &mut Repeats, line: &str, now_ms: u64) -> Verdict {
        repeats.count(Origin { level: Level::Warn, is_audit: false, place: "a.rs:1" }, line, now_ms)
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
            [Counted {
                level: Level::Warn,
                is_audit: false,
                place: "a.rs:1".into(),
                line: "disk full".into(),
                lines_differ: false,
                times: 3
            }]
        );
        assert_eq!(add(&mut repeats, "disk full", WINDOW_MS), Verdict::Write, "a new window");
    }

    /// Adds a line of a place of its own.
    fn add_elsewhere(repeats: &mut Repeats, place: &str, line: &str) -> Verdict {
        repeats.count(Origin { level: Level::Error, is_audit: true, place }, line, 0)
    }

    #[test]
    fn lines_of_different_places_are_all_written_and_hold_bounded_memory() {
        let mut repeats = Repeats::default();
        for at in 0..10 * LINES_MAX {
            let (place, line) = (format!("a.rs:{}", at / 20), format!("line {at}"));
            assert_eq!(add_elsewhere(&mut repeats, &place, &line), Verdict::Write);
        }
        assert!(repeats.lines.len() <= LINES_MAX);
        assert_eq!(repeats.take_ended(WINDOW_MS), []);
        assert!(repeats.lines.is_empty() && repeats.places.is_empty());
        for at in 0..10 * PLACES_MAX {
            add_elsewhere(&mut repeats, &format!("a.rs:{at}"), &format!("line {at}"));
        }
        assert!(repeats.places.len() <= PLACES_MAX + 1);
        assert_eq!(repeats.take_ended(WINDOW_MS).len(), 1, "those beyond are one place");
    }

    #[test]
    fn lines_of_one_place_that_differ_are_bounded_and_summed_up() {
        let mut repeats = Repeats::default();
        let verdicts: Vec<_> = (0..1000).map(|at| add(&mut repeats, &format!("no model {at}"), at)).collect();
        let written = verdicts.iter().filter(|verdict| **verdict == Verdict::Write).count() as u64;
        assert_eq!(written, PLACE_LINES_MAX);
        assert_eq!(verdicts.iter().filter(|verdict| **verdict == Verdict::Count { is_first: true }).count(), 1);
        assert!(repeats.counts());
        assert_eq!(add_elsewhere(&mut repeats, "b.rs:1", "another"), Verdict::Write);
        let counted = repeats.take_ended(WINDOW_MS);
        let [Counted { lines_differ: true, times: 900, line, .. }] = &counted[..] else { panic!("{counted:?}") };
        assert_eq!(line, "no model 999");
        assert_eq!(add(&mut repeats, "no model 0", WINDOW_MS), Verdict::Write, "a new window");
    }

    #[test]
    fn long_lines_of_one_place_are_bounded_by_their_bytes() {
        let mut repeats = Repeats::default();
        let long = |at: usize| format!("{at} {}", "é".repeat(5000));
        let written = (0..100).filter(|at| add(&mut repeats, &long(*at), 0) == Verdict::Write).count();
        assert_eq!(written, PLACE_BYTES_MAX.div_ceil(10_000 + 2));
        let counted = repeats.take_ended(WINDOW_MS);
        assert!(counted.iter().all(|counted| counted.line.len() <= EXAMPLE_BYTES_MAX) && counted.len() == 1);
    }
}
