//! What do the values of flags mean?

use std::str::FromStr;
use std::time::Duration;

use super::parse::Given;
use super::table::REPEATED;

/// The longest time limit. Timers cannot be set for longer times.
const SECONDS_MAX: u64 = 1_000_000_000;

/// A value that its flag cannot take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Bad option: \"--{flag}\".\n{reason}\n")]
pub struct BadValue {
    /// The flag.
    pub flag: &'static str,
    /// What is wrong with its value.
    pub reason: String,
}

/// The given flags, by name. If a flag takes one value and is given twice, the last value counts.
pub struct Values<'g>(pub &'g [Given]);

impl<'g> Values<'g> {
    /// The last value of a flag.
    pub fn text(&self, name: &'static str) -> Option<&'g str> {
        self.given(name).last()
    }

    /// All values of a flag, in order. The flag is one of `REPEATED`, so that files of settings take a list for it.
    pub fn all(&self, name: &'static str) -> impl Iterator<Item = &'g str> + use<'g> {
        debug_assert!(REPEATED.contains(&name), "--{name} has several values, and is not in REPEATED");
        self.given(name)
    }

    fn given(&self, name: &'static str) -> impl Iterator<Item = &'g str> + use<'g> {
        self.0.iter().filter(move |given| given.flag.name == name).map(|given| given.value.as_str())
    }

    /// Whether a flag was given.
    pub fn has(&self, name: &'static str) -> bool {
        self.text(name).is_some()
    }

    /// A truth value: true, on, 1 or false, off, 0, in any case.
    pub fn bool(&self, name: &'static str, default: bool) -> Result<bool, BadValue> {
        let Some(value) = self.text(name) else { return Ok(default) };
        bool_of(value).ok_or_else(|| bad(name, format!("invalid value for bool option: {value}")))
    }

    /// A whole number.
    pub fn int<T: FromStr>(&self, name: &'static str, default: T) -> Result<T, BadValue> {
        self.int_if_given(name).map(|value| value.unwrap_or(default))
    }

    /// A whole number, if there is one.
    pub fn int_if_given<T: FromStr>(&self, name: &'static str) -> Result<Option<T>, BadValue> {
        let Some(value) = self.text(name) else { return Ok(None) };
        let digits = value.trim().trim_start_matches(['-', '+']);
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(bad(name, format!("Invalid option value. Got {value}")));
        }
        let number = value
            .trim()
            .parse()
            .map_err(|_| bad(name, format!("Provided option value is out of bound. Got {value}")))?;
        Ok(Some(number))
    }

    /// A number of bytes above 0, if there is one: whole, or with K, M, G or T for powers of 1,024.
    pub fn bytes_if_given(&self, name: &'static str) -> Result<Option<u64>, BadValue> {
        let Some(value) = self.text(name) else { return Ok(None) };
        let invalid =
            || bad(name, format!("Invalid option value. Got {value}; give bytes, or a number with K, M, G or T"));
        let text = value.trim();
        let unit = text.chars().last().and_then(|last| "kmgt".find(last.to_ascii_lowercase()));
        let digits = if unit.is_some() { &text[..text.len() - 1] } else { text };
        let count: u64 = digits.parse().map_err(|_| invalid())?;
        let factor = 1u64 << (10 * unit.map_or(0, |at| at + 1));
        match count.checked_mul(factor).ok_or_else(invalid)? {
            0 => Err(bad(name, "a budget of 0 bytes lets nobody ask anything")),
            bytes => Ok(Some(bytes)),
        }
    }

    /// A number that may have a fraction.
    pub fn float(&self, name: &'static str, default: f64) -> Result<f64, BadValue> {
        let Some(value) = self.text(name) else { return Ok(default) };
        let number = value.trim().parse().ok().filter(|number: &f64| number.is_finite());
        number.ok_or_else(|| bad(name, format!("Invalid option value. Got {value}")))
    }

    /// A time limit in seconds; `None` for 0, which is no limit.
    pub fn time_limit(&self, name: &'static str, default: Duration) -> Result<Option<Duration>, BadValue> {
        let seconds = self.float(name, default.as_secs_f64())?;
        if !(0.0..=SECONDS_MAX as f64).contains(&seconds) {
            // `{:?}` shows a large number with an exponent, not with many zeros.
            return Err(bad(name, format!("a time is 0 to {SECONDS_MAX} seconds. Got {seconds:?}")));
        }
        let time = Duration::from_secs_f64(seconds);
        Ok((!time.is_zero()).then_some(time))
    }

    /// A whole number of seconds.
    pub fn whole_seconds(&self, name: &'static str, default: u64) -> Result<u64, BadValue> {
        let seconds = self.int(name, default)?;
        if seconds > SECONDS_MAX {
            return Err(bad(name, format!("a time is 0 to {SECONDS_MAX} seconds. Got {seconds}")));
        }
        Ok(seconds)
    }

    /// `{key}{separator}{rest}` for each value of a flag. Neither side may be empty.
    pub fn pairs(
        &self,
        name: &'static str,
        separator: char,
        format: &str,
    ) -> Result<Vec<(&'g str, &'g str)>, BadValue> {
        self.all(name)
            .map(|value| {
                sides(value, separator)
                    .ok_or_else(|| bad(name, format!("--{name} option format is '{format}'. Got {value}")))
            })
            .collect()
    }
}

/// The texts on both sides of the first separator, if neither is empty. A shell variable that is not set leaves an empty side.
pub fn sides(text: &str, separator: char) -> Option<(&str, &str)> {
    text.split_once(separator).filter(|(left, right)| !left.is_empty() && !right.is_empty())
}

/// The truth value of a word.
pub fn bool_of(word: &str) -> Option<bool> {
    match word.to_ascii_lowercase().as_str() {
        "true" | "on" | "1" => Some(true),
        "false" | "off" | "0" => Some(false),
        _ => None,
    }
}

/// A [`BadValue`] of this flag.
pub fn bad(flag: &'static str, reason: impl Into<String>) -> BadValue {
    BadValue { flag, reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::super::parse::parse;
    use super::*;

    fn given(line: &str) -> Vec<Given> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).expect("a legal line")
    }

    #[test]
    fn the_last_value_counts_and_lists_keep_all() {
        let given = given("--http-port 1 --http-port 2 --load-model a --load-model b");
        let values = Values(&given);
        assert_eq!(values.int("http-port", 0u16), Ok(2));
        assert_eq!(values.all("load-model").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(values.int("grpc-port", 8001u16), Ok(8001));
    }

    #[test]
    fn a_bad_value_names_its_flag() {
        let given = given("--http-port x --grpc-port 99999 --log-info maybe");
        let values = Values(&given);
        let text = |error: BadValue| error.to_string();
        assert_eq!(
            values.int("http-port", 0u16).map_err(text),
            Err("Bad option: \"--http-port\".\nInvalid option value. Got x\n".into())
        );
        assert_eq!(
            values.int("grpc-port", 0u16).map_err(text),
            Err("Bad option: \"--grpc-port\".\nProvided option value is out of bound. Got 99999\n".into())
        );
        assert_eq!(
            values.bool("log-info", true).map_err(text),
            Err("Bad option: \"--log-info\".\ninvalid value for bool option: maybe\n".into())
        );
    }
}
