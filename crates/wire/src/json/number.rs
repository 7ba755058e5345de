//! How is a number written?

/// The most digits before the point in a number without an exponent, as in RapidJSON's writer: `100000000000000000000.0`.
const PLAIN_DIGITS_MAX: i32 = 21;
/// The most zeros after the point in a number without an exponent: `0.000001`.
const PLAIN_ZEROS_MAX: i32 = 5;

/// Appends the shortest decimal that reads back as `value`. Whole numbers end in `.0`. Very large and very small numbers have an exponent. Non-finite
/// numbers are `NaN`, `Infinity` and `-Infinity`.
pub fn push_double(out: &mut Vec<u8>, value: f64) {
    if !value.is_finite() {
        let word: &[u8] = match value {
            _ if value.is_nan() => b"NaN",
            _ if value > 0.0 => b"Infinity",
            _ => b"-Infinity",
        };
        return out.extend_from_slice(word);
    }
    let mut buffer = zmij::Buffer::new();
    let text = buffer.format_finite(value).as_bytes();
    if text.contains(&b'e') || text.len() > PLAIN_DIGITS_MAX as usize {
        return push_rearranged(out, text);
    }
    out.extend_from_slice(text);
    if !text.contains(&b'.') {
        out.extend_from_slice(b".0");
    }
}

/// Appends the same digits, with an exponent where RapidJSON writes one.
fn push_rearranged(out: &mut Vec<u8>, text: &[u8]) {
    let text = text.strip_prefix(b"-").inspect(|_| out.push(b'-')).unwrap_or(text);
    let (mantissa, exponent) = match text.iter().position(|byte| *byte == b'e') {
        Some(at) => (&text[..at], read_exponent(&text[at + 1..])),
        None => (text, 0),
    };
    let point = mantissa.iter().position(|byte| *byte == b'.').unwrap_or(mantissa.len());
    let all: Vec<u8> = mantissa.iter().copied().filter(|byte| *byte != b'.').collect();
    let leading = all.iter().take_while(|byte| **byte == b'0').count();
    let trailing = all.iter().skip(leading).rev().take_while(|byte| **byte == b'0').count();
    let digits = &all[leading..all.len() - trailing];
    // The value is 0.digits × 10^scale.
    let scale = point as i32 - leading as i32 + exponent;
    let count = digits.len() as i32;
    if count <= scale && scale <= PLAIN_DIGITS_MAX {
        out.extend_from_slice(digits);
        out.resize(out.len() + (scale - count) as usize, b'0');
        out.extend_from_slice(b".0");
    } else if 0 < scale && scale <= PLAIN_DIGITS_MAX {
        let (whole, fraction) = digits.split_at(scale as usize);
        out.extend_from_slice(whole);
        out.push(b'.');
        out.extend_from_slice(fraction);
    } else if (-PLAIN_ZEROS_MAX..=0).contains(&scale) {
        out.extend_from_slice(b"0.");
        out.resize(out.len() + scale.unsigned_abs() as usize, b'0');
        out.extend_from_slice(digits);
    } else {
        let (first, others) = digits.split_at(1.min(digits.len()));
        out.extend_from_slice(first);
        if !others.is_empty() {
            out.push(b'.');
            out.extend_from_slice(others);
        }
        out.push(b'e');
        push_signed(out, i64::from(scale - 1));
    }
}

fn read_exponent(text: &[u8]) -> i32 {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// Appends an integer.
pub fn push_signed(out: &mut Vec<u8>, value: i64) {
    if value < 0 {
        out.push(b'-');
    }
    push_unsigned(out, value.unsigned_abs());
}

/// Appends an integer of 0 or more.
pub fn push_unsigned(out: &mut Vec<u8>, mut value: u64) {
    // 2^64 − 1 has twenty digits.
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(value: f64, text: &str) {
        let mut out = Vec::new();
        push_double(&mut out, value);
        assert_eq!(std::str::from_utf8(&out).unwrap(), text, "{value:e}");
    }

    #[test]
    fn doubles_are_written_as_rapidjson_writes_them() {
        check(0.0, "0.0");
        check(-0.0, "-0.0");
        check(1.0, "1.0");
        check(-2.5, "-2.5");
        check(f64::from(0.1f32), "0.10000000149011612");
        check(0.1, "0.1");
        check(123_456_789.125, "123456789.125");
        check(1e15, "1000000000000000.0");
        check(1e16, "10000000000000000.0");
        check(1e17, "100000000000000000.0");
        check(1.25e17, "125000000000000000.0");
        check(123_456_789_012_345_680.0, "123456789012345680.0");
        check(1e20, "100000000000000000000.0");
        check(-1e20, "-100000000000000000000.0");
        check(123_456_789_012_345_680_000.0, "123456789012345680000.0");
        check(1e21, "1e21");
        check(1.5e21, "1.5e21");
        check(1e22, "1e22");
        check(0.001, "0.001");
        check(1e-5, "0.00001");
        check(1.25e-5, "0.0000125");
        check(1e-6, "0.000001");
        check(1.5e-6, "0.0000015");
        check(1e-7, "1e-7");
        check(-1.5e-7, "-1.5e-7");
        check(f64::MAX, "1.7976931348623157e308");
        check(f64::MIN_POSITIVE, "2.2250738585072014e-308");
        check(5e-324, "5e-324");
        check(f64::NAN, "NaN");
        check(f64::INFINITY, "Infinity");
        check(f64::NEG_INFINITY, "-Infinity");
    }

    #[test]
    fn integers_are_written_whole() {
        let mut out = Vec::new();
        for value in [0, 7, 10, u64::MAX] {
            push_unsigned(&mut out, value);
            out.push(b' ');
        }
        push_signed(&mut out, i64::MIN);
        assert_eq!(out, b"0 7 10 18446744073709551615 -9223372036854775808");
    }

    proptest! {
        #[test]
        fn every_double_reads_back(bits: u64) {
            let value = f64::from_bits(bits);
            prop_assume!(value.is_finite());
            let mut out = Vec::new();
            push_double(&mut out, value);
            let text = std::str::from_utf8(&out).unwrap();
            prop_assert_eq!(text.parse::<f64>().unwrap().to_bits(), bits, "{}", text);
            prop_assert!(text.contains(['.', 'e']), "{}", text);
        }
    }
}
