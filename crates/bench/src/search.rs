//! Which levels of load are measured, and in which order?

use crate::options::{Load, Options, Range};
use crate::results::{Level, Point};

/// Measures the levels of the options, in their order or by binary search, until one is too slow.
pub(crate) fn search(
    options: &Options,
    intervals_rate: f64,
    mut measure: impl FnMut(Level) -> Result<Point, String>,
) -> Result<Vec<Point>, String> {
    match &options.load {
        Load::Concurrency(range) => {
            let range = Range { start: range.start as f64, end: range.end as f64, step: range.step as f64 };
            levels(options, range, |value| measure(Level::Concurrency(value as usize)))
        }
        Load::Rate(range) => levels(options, *range, |value| measure(Level::Rate(value))),
        Load::Intervals(_) => Ok(vec![measure(Level::Intervals(intervals_rate))?]),
    }
}

fn levels(
    options: &Options,
    range: Range<f64>,
    mut measure: impl FnMut(f64) -> Result<Point, String>,
) -> Result<Vec<Point>, String> {
    let mut points = Vec::new();
    let max_us = options.latency_max.map_or(f64::INFINITY, |max| max.as_secs_f64() * 1e6);
    // Whether the level is fast enough.
    let mut visit = |value: f64, points: &mut Vec<Point>| {
        let point = measure(value)?;
        let is_fast = point.client.stabilized_us(options.percentile) <= max_us;
        points.push(point);
        Ok::<bool, String>(is_fast)
    };
    if !options.is_binary_search {
        let mut value = range.start;
        while range.is_endless() || value <= range.end {
            if !visit(value, &mut points)? {
                break;
            }
            value += range.step;
        }
        return Ok(points);
    }
    let (mut low, mut high) = (range.start, range.end);
    if !visit(low, &mut points)? || visit(high, &mut points)? {
        return Ok(points);
    }
    while high - low > range.step {
        let steps = ((high - low) / 2.0 / range.step).floor().max(1.0);
        let middle = low + steps * range.step;
        if visit(middle, &mut points)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::samples::point;

    /// The levels that are measured, where each request takes as many ms as there are requests under way.
    fn visited(range: Range<usize>, is_binary_search: bool, latency_max_ms: Option<u64>) -> Vec<usize> {
        let latency_max = latency_max_ms.map(Duration::from_millis);
        let options = Options { load: Load::Concurrency(range), is_binary_search, latency_max, ..Options::default() };
        let points = search(&options, 0.0, |level| {
            let mut point = point(level.value() as usize, 1.0);
            point.client.mean_us = level.value() * 1e3;
            Ok(point)
        });
        points.expect("nothing fails").iter().map(|point| point.level.value() as usize).collect()
    }

    #[test]
    fn levels_follow_each_other_until_one_is_too_slow() {
        let range = |start, end, step| Range { start, end, step };
        assert_eq!(visited(range(1, 7, 3), false, None), [1, 4, 7]);
        assert_eq!(visited(range(1, 0, 2), false, Some(4)), [1, 3, 5]);
    }

    #[test]
    fn a_binary_search_ends_within_a_step_of_the_highest_level() {
        let range = Range { start: 1, end: 17, step: 2 };
        assert_eq!(visited(range, true, Some(6)), [1, 17, 9, 5, 7]);
        assert_eq!(visited(range, true, Some(20)), [1, 17]);
        assert_eq!(visited(Range { start: 7, ..range }, true, Some(6)), [7]);
    }
}
