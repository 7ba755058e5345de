//! Which levels of load does a range like `1:8:2` mean?

use std::fmt::Display;
use std::str::FromStr;

/// `start:end:step`, both ends included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Range<T> {
    pub(crate) start: T,
    /// 0: without an end, until the latency is too high.
    pub(crate) end: T,
    pub(crate) step: T,
}

impl<T: Copy + FromStr + PartialOrd + Default + Display> Range<T> {
    /// One level.
    pub(crate) fn one(level: T) -> Range<T> {
        Range { start: level, end: level, step: level }
    }

    /// Reads `start`, `start:end` or `start:end:step`; a missing step is `one`.
    pub(super) fn parse(option: &str, text: &str, one: T) -> Result<Range<T>, String> {
        let fault = || format!("{option} is start:end:step with numbers above 0, and is '{text}'");
        let numbers: Vec<T> = text.split(':').map(str::parse).collect::<Result<_, _>>().map_err(|_| fault())?;
        let zero = T::default();
        let range = match numbers[..] {
            [start] => Range { start, end: start, step: one },
            [start, end] => Range { start, end, step: one },
            [start, end, step] => Range { start, end, step },
            _ => return Err(fault()),
        };
        let is_sound = range.start > zero && range.step > zero && range.end >= zero;
        if !is_sound {
            return Err(fault());
        }
        if range.end > zero && range.end < range.start {
            return Err(format!("{option} ends at {}, which is below its start {}", range.end, range.start));
        }
        Ok(range)
    }

    pub(crate) fn is_endless(&self) -> bool {
        self.end == T::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<(usize, usize, usize)>) {
        let range = Range::parse("--concurrency-range", text, 1).ok();
        assert_eq!(range.map(|range| (range.start, range.end, range.step)), expect, "{text}");
    }

    #[test]
    fn what_is_missing_is_one_level_and_a_step_of_one() {
        check("4", Some((4, 4, 1)));
        check("1:8", Some((1, 8, 1)));
        check("2:8:2", Some((2, 8, 2)));
        check("1:0", Some((1, 0, 1)));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "0", "a", "4:2", "1:2:0", "1:2:3:4", "-1", "1.5"] {
            check(text, None);
        }
    }
}
