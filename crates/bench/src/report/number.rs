//! How does perf_analyzer write a number?

/// Significant digits.
const DIGITS: i32 = 6;
/// Powers of ten below this one, and from [`DIGITS`] on, have an exponent.
const EXPONENT_MIN: i32 = -4;

/// A number as C++ streams and `%g` write it: six significant digits without zeros at the end.
pub(super) fn general(number: f64) -> String {
    let scientific = format!("{number:.*e}", DIGITS as usize - 1);
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (EXPONENT_MIN..DIGITS).contains(&exponent) {
        return trimmed(&format!("{number:.*}", (DIGITS - 1 - exponent) as usize)).to_owned();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs())
}

fn trimmed(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(number: f64, expect: &str) {
        assert_eq!(general(number), expect);
    }

    #[test]
    fn six_digits_are_written_and_no_zeros_at_the_end() {
        check(0.0, "0");
        check(100.0, "100");
        check(2058.583, "2058.58");
        check(2053.5, "2053.5");
        check(50.5, "50.5");
        check(0.000_123_456_78, "0.000123457");
        check(999_999.4, "999999");
    }

    #[test]
    fn large_and_small_numbers_have_an_exponent() {
        check(1e6, "1e+06");
        check(999_999.5, "1e+06");
        check(123_456_789.0, "1.23457e+08");
        check(0.000_012_3, "1.23e-05");
    }
}
