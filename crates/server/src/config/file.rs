//! Which settings does a file give?
//!
//! ```toml
//! model-repository = ["/srv/models", "/srv/more"]
//! http-port = 9000
//! ```
//!
//! Keys are the names of flags. All faults of a file are reported at once.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{FLAG, find};
use crate::flags::{Flag, Given, Origin, Takes};
use crate::plain::plain;

/// Reads the file at `path`. Err: its faults, a line each, as `path:line: fault`.
pub(super) fn open(path: &str) -> Result<Vec<Given>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    read(path, &text)
}

/// The same of a text.
pub(super) fn read(path: &str, text: &str) -> Result<Vec<Given>, String> {
    let line_of = |at: usize| text.as_bytes().iter().take(at).filter(|&&byte| byte == b'\n').count() + 1;
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
            Err(fault) => faults.push(format!("{path}:{line}: {fault}")),
        }
    }
    if faults.is_empty() { Ok(given) } else { Err(faults.join("\n")) }
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
}
