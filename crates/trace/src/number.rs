//! How does Triton write a number with a fraction?
//!
//! As a C++ stream does: `%g` with six digits.

/// The text of the number.
pub fn general(value: f64) -> String {
    if value.is_nan() {
        return if value.is_sign_negative() { "-nan" } else { "nan" }.to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{value:.5e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&exponent) {
        let decimals = usize::try_from(5 - exponent).unwrap_or_default();
        return without_zeros(&format!("{value:.decimals$}")).to_owned();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", without_zeros(digits), exponent.abs())
}

fn without_zeros(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(value: f64, expected: &str) {
        assert_eq!(general(value), expected);
    }

    #[test]
    fn numbers_look_as_in_files_of_triton() {
        check(1.5, "1.5");
        check(2.0, "2");
        check(1.0 / 3.0, "0.333333");
        check(1e10, "1e+10");
        check(1e-7, "1e-07");
        check(100_000.0, "100000");
        check(1_234_567.0, "1.23457e+06");
        check(999_999.5, "1e+06");
        check(0.000_099_999_99, "0.0001");
        check(0.0, "0");
        check(-0.5, "-0.5");
        check(1e20, "1e+20");
        check(f64::NAN, "nan");
        check(f64::NEG_INFINITY, "-inf");
    }
}
