//! Which flags did the operator give?
//!
//! Command lines are read as GNU's `getopt_long` reads them, because Triton does so.

use super::origin::Origin;
use super::table::{FLAGS, Flag, Takes};

/// One flag as given, with its value; empty for a flag without one.
#[derive(Clone, Debug)]
pub struct Given {
    /// The flag.
    pub flag: &'static Flag,
    /// Its value.
    pub value: String,
    /// Where it was given.
    pub origin: Origin,
}

/// Why a command line cannot be read. `--help` is one: Triton prints its usage and exits with 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// `--help`.
    #[error("")]
    Help,
    /// No flag begins so. The word is without its value.
    #[error("unrecognized option '{0}'")]
    Unknown(String),
    /// Several flags begin so.
    #[error("option '--{given}' is ambiguous; possibilities: {possibilities}")]
    Ambiguous {
        /// What was written.
        given: String,
        /// The flags it may mean.
        possibilities: String,
    },
    /// A flag that wants a value stands last, without one.
    #[error("option '--{0}' requires an argument")]
    NoValue(&'static str),
    /// A flag that stands alone was given a value.
    #[error("option '--{0}' doesn't allow an argument")]
    Value(&'static str),
    /// A word that belongs to no flag.
    #[error("Unexpected argument: {0}")]
    Stray(String),
}

/// Reads the words behind the command.
pub fn parse(words: &[String]) -> Result<Vec<Given>, ParseError> {
    let (mut given, mut stray) = (Vec::new(), None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(text) = word.strip_prefix("--") else {
            if word.starts_with('-') && word.len() > 1 {
                return Err(unknown(word));
            }
            stray.get_or_insert_with(|| word.clone());
            continue;
        };
        // The word is `--`. As in getopt, no word after it is a flag.
        if text.is_empty() {
            stray = stray.or_else(|| words.next().cloned());
            break;
        }
        let (name, inline) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        let flag = find(name, word)?;
        if flag.name == "help" {
            return Err(ParseError::Help);
        }
        let value = match (flag.takes, inline) {
            (Takes::Nothing, None) => String::new(),
            (Takes::Nothing, Some(_)) => return Err(ParseError::Value(flag.name)),
            (Takes::Value(_), Some(value)) => value,
            (Takes::Value(_), None) => words.next().cloned().ok_or(ParseError::NoValue(flag.name))?,
        };
        given.push(Given { flag, value, origin: Origin::CommandLine });
    }
    match stray {
        Some(word) => Err(ParseError::Stray(word)),
        None => Ok(given),
    }
}

fn find(name: &str, word: &str) -> Result<&'static Flag, ParseError> {
    if let Some(flag) = FLAGS.iter().find(|flag| flag.name == name) {
        return Ok(flag);
    }
    let matching: Vec<_> = FLAGS.iter().filter(|flag| flag.name.starts_with(name)).collect();
    match &matching[..] {
        [flag] => Ok(flag),
        [] => Err(unknown(word)),
        several => {
            let possibilities = several.iter().map(|flag| format!("'--{}'", flag.name)).collect::<Vec<_>>().join(" ");
            Err(ParseError::Ambiguous { given: name.to_owned(), possibilities })
        }
    }
}

fn unknown(word: &str) -> ParseError {
    ParseError::Unknown(word.split('=').next().unwrap_or(word).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: Result<&[(&str, &str)], &str>) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let got = parse(&words);
        let got = got.as_ref().map(|all| all.iter().map(|g| (g.flag.name, g.value.as_str())).collect::<Vec<_>>());
        match (got, expected) {
            (Ok(got), Ok(want)) => assert_eq!(got, want),
            (Err(error), Err(text)) => assert_eq!(error.to_string(), text),
            (got, want) => panic!("{got:?}, expected {want:?}"),
        }
    }

    #[test]
    fn values_stand_behind_a_sign_or_a_space_and_names_may_be_cut() {
        check("--http-port=1 --grpc-port 2", Ok(&[("http-port", "1"), ("grpc-port", "2")]));
        check("--model-rep /m --strict-r false", Ok(&[("model-repository", "/m"), ("strict-readiness", "false")]));
        check("--id --help", Ok(&[("id", "--help")]));
        check("--id x --", Ok(&[("id", "x")]));
        check("--disable-auto-complete-config", Ok(&[("disable-auto-complete-config", "")]));
    }

    #[test]
    fn what_cannot_be_read_is_said_as_getopt_says_it() {
        check("--nope=3", Err("unrecognized option '--nope'"));
        check("-http-port=3", Err("unrecognized option '-http-port'"));
        check(
            "--http-po",
            Err("option '--http-po' requires an argument").map_err(|_| "option '--http-port' requires an argument"),
        );
        check(
            "--disable-auto-complete-config=1",
            Err("option '--disable-auto-complete-config' doesn't allow an argument"),
        );
        check("--id x -- --id y", Err("Unexpected argument: --id"));
        check("stray -- other", Err("Unexpected argument: stray"));
        check("stray --id x", Err("Unexpected argument: stray"));
        check(
            "--reuse- 1",
            Err("option '--reuse-' is ambiguous; possibilities: '--reuse-http-port' '--reuse-grpc-port'"),
        );
    }

    #[test]
    fn no_name_is_given_twice() {
        for (at, flag) in FLAGS.iter().enumerate() {
            assert!(FLAGS[..at].iter().all(|earlier| earlier.name != flag.name), "--{}", flag.name);
        }
    }
}
