//! Which numbers stand at an axis, and where does a value lie on it?

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};

/// Steps between the marks of a linear axis, at most.
const STEPS_MAX: f64 = 8.0;
/// Marks of a logarithmic axis, at most. With more of them only powers of ten are marked.
const MARKS_MAX: usize = 8;
/// Room between the last value and the end of an axis.
const ROOM: f64 = 1.03;

/// An axis of a picture.
pub(super) struct Axis {
    pub(super) name: &'static str,
    pub(super) scale: Scale,
    /// What stands at a mark.
    pub(super) label: Box<dyn Fn(f64) -> String>,
}

/// The values of an axis.
#[derive(Clone)]
pub(super) struct Scale {
    pub(super) range: Range<f64>,
    pub(super) marks: Vec<f64>,
    pub(super) is_log: bool,
}

impl Axis {
    /// From 0 to at least this number.
    pub(super) fn linear(name: &'static str, max: f64, label: fn(f64) -> String) -> Axis {
        let max = if max > 0.0 { max * ROOM } else { 1.0 };
        let step = round_up(max / STEPS_MAX);
        let steps = (max / step).ceil() as u32;
        let marks = (0..=steps).map(|mark| f64::from(mark) * step).collect();
        let scale = Scale { range: 0.0..f64::from(steps) * step, marks, is_log: false };
        Axis { name, scale, label: Box::new(label) }
    }

    /// Around these numbers, of which those above 0 count.
    pub(super) fn log(name: &'static str, values: impl Iterator<Item = f64>, label: fn(f64) -> String) -> Axis {
        let (low, high) = ends(values);
        let (low, high) = (round_down(low / ROOM), round_up(high * ROOM));
        let mut marks = Vec::new();
        let mut mark = low;
        while mark <= high * ROOM {
            marks.push(mark);
            mark = round_up(mark * ROOM);
        }
        if marks.len() > MARKS_MAX {
            marks.retain(|mark| (mark.log10() - mark.log10().round()).abs() < 1e-9);
        }
        Axis { name, scale: Scale { range: low..high, marks, is_log: true }, label: Box::new(label) }
    }

    /// With a mark for each of these numbers, and logarithmic.
    pub(super) fn log_of(name: &'static str, values: &[f64], label: fn(f64) -> String) -> Axis {
        let (low, high) = ends(values.iter().copied());
        let every = values.len().div_ceil(MARKS_MAX);
        let marks = values.iter().copied().step_by(every.max(1)).collect();
        let room = ROOM.powi(3);
        Axis { name, scale: Scale { range: low / room..high * room, marks, is_log: true }, label: Box::new(label) }
    }
}

impl Scale {
    /// Where a value lies: 0 at the begin, 1 at the end.
    pub(super) fn share(&self, value: f64) -> f64 {
        let along = |value: f64| if self.is_log { value.log10() } else { value };
        (along(value) - along(self.range.start)) / (along(self.range.end) - along(self.range.start))
    }
}

impl Ranged for Scale {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (begin, end): (i32, i32)) -> i32 {
        begin + (f64::from(end - begin) * self.share(*value)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.marks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// The smallest and the largest of the numbers above 0.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let positive = values.filter(|value| value.is_finite() && *value > 0.0);
    let (low, high) = positive.fold((f64::INFINITY, 0.0), |(low, high), value| (value.min(low), value.max(high)));
    if high > 0.0 { (low, high) } else { (1.0, 10.0) }
}

/// The next of 1, 2, 5, 10, 20, … below a number, or the number itself.
fn round_down(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [5.0, 2.0, 1.0].into_iter().map(|digit| digit * power).find(|round| *round <= value).unwrap_or(power)
}

fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|digit| digit * power).find(|round| *round >= value).unwrap_or(10.0 * power)
}

/// A number of µs, as a person writes it.
pub(crate) fn duration(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{} µs", short(us)),
        us if us < 1e6 => format!("{} ms", short(us / 1e3)),
        us => format!("{} s", short(us / 1e6)),
    }
}

/// A number of bytes, as a person writes it.
pub(crate) fn bytes(bytes: f64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, power)| bytes >= f64::from(1_u32 << power));
    let (unit, size) = unit.map_or(("B", 1.0), |(unit, power)| (unit, f64::from(1_u32 << power)));
    format!("{} {unit}", short(bytes / size))
}

/// A number, as a person writes it.
pub(crate) fn quantity(number: f64) -> String {
    match number {
        number if number < 1e3 => short(number),
        number if number < 1e6 => format!("{} k", short(number / 1e3)),
        number => format!("{} M", short(number / 1e6)),
    }
}

/// Three digits, without zeros at the end.
fn short(number: f64) -> String {
    let digits = if number >= 100.0 {
        0
    } else if number >= 10.0 {
        1
    } else {
        2
    };
    let text = format!("{number:.digits$}");
    if digits == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(axis: &Axis, expect: &[&str]) {
        assert_eq!(axis.scale.marks.iter().map(|mark| (axis.label)(*mark)).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn a_linear_axis_begins_at_zero_and_has_round_steps() {
        check(&Axis::linear("", 2400.0, quantity), &["0", "500", "1 k", "1.5 k", "2 k", "2.5 k"]);
        check(&Axis::linear("", 700.0, quantity), &["0", "100", "200", "300", "400", "500", "600", "700", "800"]);
        check(&Axis::linear("", 9.0, quantity), &["0", "2", "4", "6", "8", "10"]);
        check(&Axis::linear("", 0.0, quantity), &["0", "0.2", "0.4", "0.6", "0.8", "1"]);
    }

    #[test]
    fn a_logarithmic_axis_ends_at_round_numbers_around_the_values() {
        check(&Axis::log("", [430.0, 1900.0].into_iter(), duration), &["200 µs", "500 µs", "1 ms", "2 ms"]);
        check(&Axis::log("", [500.0].into_iter(), duration), &["200 µs", "500 µs", "1 ms"]);
        check(
            &Axis::log("", [1.5, 1e6].into_iter(), duration),
            &["1 µs", "10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s"],
        );
        check(
            &Axis::log("", [0.0, f64::NAN].into_iter(), duration),
            &["0.5 µs", "1 µs", "2 µs", "5 µs", "10 µs", "20 µs"],
        );
    }

    #[test]
    fn measured_values_are_marks() {
        check(&Axis::log_of("", &[512.0, 1024.0, 3.0 * 1024.0 * 1024.0], bytes), &["512 B", "1 KiB", "3 MiB"]);
        assert_eq!(Axis::log_of("", &[1.0; 20], bytes).scale.marks.len(), 7);
    }
}
