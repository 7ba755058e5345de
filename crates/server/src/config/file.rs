//! Which settings does a file give?
//!
//! ```toml
//! model-repository = ["/srv/models", "/srv/more"]
//! http-port = 9000
//! ```
//!
//! Keys are the names of flags. All faults of a file are reported at once.

use std::os::unix::fs::FileTypeExt;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{FLAG, find};
use crate::flags::{Flag, Given, Origin, Takes};
use crate::plain::plain;

/// After so many faults, the rest of a file is not read.
const FAULTS_MAX: usize = 100;

/// A fault of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Its line, from 1. `None` for a contradiction between settings.
    pub(super) line: Option<usize>,
    /// `path:line: fault`, or `path: fault`.
    pub(super) text: String,
}

/// Reads the file at `path`. Err: its faults, a line each.
pub(super) fn open(path: &str) -> Result<Vec<Given>, String> {
    read(path, &text_of(path)?)
}

/// Reads what can be read of the file at `path`. Err: it is no file of TOML.
pub(super) fn open_partly(path: &str) -> Result<(Vec<Given>, Vec<Fault>), String> {
    read_partly(path, &text_of(path)?)
}

/// Reads the text of a file. Err: its faults, a line each.
pub(super) fn read(path: &str, text: &str) -> Result<Vec<Given>, String> {
    let (given, faults) = read_partly(path, text)?;
    if faults.is_empty() { Ok(given) } else { Err(lines(faults)) }
}

/// The faults in the order of their lines, those without a line last.
pub(super) fn lines(mut faults: Vec<Fault>) -> String {
    faults.sort_by_key(|fault| fault.line.unwrap_or(usize::MAX));
    faults.into_iter().map(|fault| fault.text).collect::<Vec<_>>().join("\n")
}

fn text_of(path: &str) -> Result<String, String> {
    // To open a named pipe waits until somebody writes to it. The pipes of a shell (`/dev/fd/63`) are open already.
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        return Err(format!("{path}: it is a named pipe, which may wait for ever; give a file"));
    }
    std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))
}

fn read_partly(path: &str, text: &str) -> Result<(Vec<Given>, Vec<Fault>), String> {
    let newlines: Vec<usize> = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect();
    let line_of = |at: usize| newlines.partition_point(|newline| *newline < at) + 1;
    let table = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(span.start));
        format!("{path}:{line}: {}", error.message())
    })?;
    let mut settings: Vec<_> = table.get_ref().iter().collect();
    settings.sort_by_key(|(key, _)| key.span().start);
    let (mut given, mut faults) = (Vec::new(), Vec::new());
    for (key, value) in settings {
        let line = line_of(key.span().start);
        match values(key.get_ref(), value) {
            Ok((flag, values)) => {
                let origin = Origin::File { path: path.to_owned(), line };
                given.extend(values.into_iter().map(|value| Given { flag, value, origin: origin.clone() }));
            }
            Err(fault) => faults.push(Fault { line: Some(line), text: format!("{path}:{line}: {fault}") }),
        }
        if faults.len() == FAULTS_MAX {
            faults.push(Fault { line: None, text: format!("{path}: more than {FAULTS_MAX} faults; mend these first") });
            break;
        }
    }
    Ok((given, faults))
}

/// The flag of a key, and its values as a command line would have them.
fn values(key: &str, value: &Spanned<DeValue<'_>>) -> Result<(&'static Flag, Vec<String>), String> {
    let value = value.get_ref();
    if let DeValue::Table(_) = value {
        return Err(format!("'{}' is a table; settings stand at the top, as `http-port = 8000`", plain(key)));
    }
    let flag = find(key)?;
    if flag.name == FLAG {
        return Err("a file cannot name another file of settings".to_owned());
    }
    let values = match (flag.takes, value) {
        (Takes::Nothing, DeValue::Boolean(true)) => vec![String::new()],
        (Takes::Nothing, DeValue::Boolean(false)) => vec![],
        (Takes::Nothing, other) => return Err(format!("{key}: true or false, and not {}", kind(other))),
        (Takes::Value(_), DeValue::Array(list)) if flag.repeats() => {
            list.iter().map(|one| word(key, one.get_ref())).collect::<Result<_, _>>()?
        }
        (Takes::Value(_), DeValue::Array(_)) => return Err(format!("{key}: takes one value, and not a list")),
        (Takes::Value(_), one) => vec![word(key, one)?],
    };
    Ok((flag, values))
}

/// A value as a command line would have it.
fn word(key: &str, value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Boolean(on) => Ok(on.to_string()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Integer(number) => {
            let whole = i64::from_str_radix(number.as_str(), number.radix());
            whole.map(|number| number.to_string()).map_err(|error| format!("{key}: {}: {error}", number.as_str()))
        }
        other => Err(format!("{key}: a text, a number, true or false, and not {}", kind(other))),
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "a truth value",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Result<&[(&str, &str, usize)], &str>) {
        let found = read("f", text);
        let found = found.as_ref().map(|given| {
            let line = |one: &Given| if let Origin::File { line, .. } = one.origin { line } else { 0 };
            given.iter().map(|one| (one.flag.name, one.value.as_str(), line(one))).collect::<Vec<_>>()
        });
        match (found, expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect),
            (Err(found), Err(expect)) => assert_eq!(found, expect),
            (found, _) => panic!("{text} gives {found:?}"),
        }
    }

    #[test]
    fn keys_are_flags_and_values_are_what_a_command_line_has() {
        check("", Ok(&[]));
        let text = "# ports\nhttp-port = 9_000\n\nid = \"a\"\nstrict-readiness = false\nwrite-timeout = 0.5\n";
        let expect =
            [("http-port", "9000", 2), ("id", "a", 4), ("strict-readiness", "false", 5), ("write-timeout", "0.5", 6)];
        check(text, Ok(&expect));
        check("load-model = [\"a\",\n \"b\"]", Ok(&[("load-model", "a", 1), ("load-model", "b", 1)]));
        check("load-model = \"a\"", Ok(&[("load-model", "a", 1)]));
        check("disable-auto-complete-config = true", Ok(&[("disable-auto-complete-config", "", 1)]));
        check("disable-auto-complete-config = false", Ok(&[]));
        check("memory-budget = \"1G\"", Ok(&[("memory-budget", "1G", 1)]));
    }

    #[test]
    fn all_faults_are_reported_with_their_lines_and_the_nearest_name() {
        check(
            "id = \"a\"\nhttp-prot = 1\n\n[grpc]\nport = 2",
            Err("f:2: there is no setting 'http-prot'; did you mean 'http-port'?\n\
                 f:4: 'grpc' is a table; settings stand at the top, as `http-port = 8000`"),
        );
        check("http_port = 1", Err("f:1: there is no setting 'http_port'; did you mean 'http-port'?"));
        check("colour = 1", Err("f:1: there is no setting 'colour'"));
        check("http-port = [1, 2]", Err("f:1: http-port: takes one value, and not a list"));
        check("id = 2020-01-01", Err("f:1: id: a text, a number, true or false, and not a date"));
        let alone = "f:1: disable-auto-complete-config: true or false, and not a number";
        check("disable-auto-complete-config = 1", Err(alone));
        check("\"a\\nb\" = 1", Err("f:1: there is no setting 'a\\nb'"));
        check("help = true", Err("f:1: 'help' is no setting"));
        check("config = \"g\"", Err("f:1: a file cannot name another file of settings"));
    }

    #[test]
    fn what_is_no_toml_is_reported_with_its_line() {
        assert!(read("f", "id = \"a\"\nhttp-port 1\n").is_err_and(|text| text.starts_with("f:2: ")));
        assert!(read("f", "id = \"a\"\nid = \"b\"\n").is_err_and(|text| text.starts_with("f:2: ")));
        assert!(open("/no/such/file").is_err_and(|text| text.starts_with("/no/such/file: ")));
    }

    #[test]
    fn after_many_faults_the_rest_is_not_read() {
        let text = (0..100_000).map(|number| format!("nothing-{number} = 1\n")).collect::<Vec<_>>().concat();
        let faults = read("f", &text).expect_err("no such settings");
        assert_eq!(faults.lines().count(), FAULTS_MAX + 1);
        assert!(faults.starts_with("f:1: there is no setting 'nothing-0'"), "{faults}");
        assert!(faults.ends_with("f: more than 100 faults; mend these first"), "{faults}");
    }
}
