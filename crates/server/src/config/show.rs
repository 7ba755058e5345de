//! How are the settings in effect printed?
//!
//! As a file that `--config` reads: those that were given with their origins, the others as comments with their defaults.

use crate::flags::{FLAGS, Flag, Given, Takes};

/// The settings as a file.
pub(super) fn text(given: &[Given]) -> String {
    let mut text = String::new();
    let mut group = "";
    for flag in FLAGS.iter().filter(|flag| !matches!(flag.name, "help" | "config")) {
        if flag.group != group {
            group = flag.group;
            text.push_str(&format!("{}# {group}\n", if text.is_empty() { "" } else { "\n" }));
        }
        let values: Vec<&Given> = given.iter().filter(|one| one.flag.name == flag.name).collect();
        text.push_str(&line(flag, &values));
    }
    text
}

fn line(flag: &Flag, given: &[&Given]) -> String {
    let name = flag.name;
    let Some(last) = given.last() else {
        return match default_of(flag) {
            Some(default) => format!("# {name} = {}\n", value(flag, default)),
            None => format!("# {name}: not given\n"),
        };
    };
    let shown = match flag.takes {
        Takes::Nothing => "true".to_owned(),
        Takes::Value(_) if flag.repeats() => {
            let all: Vec<String> = given.iter().map(|one| quoted(&one.value)).collect();
            format!("[{}]", all.join(", "))
        }
        Takes::Value(_) => value(flag, &last.value),
    };
    format!("{name} = {shown}  # {}\n", last.origin)
}

/// The default in the usage, if it is only a value. If the value would mean something else when given, the usage has a longer text.
fn default_of(flag: &Flag) -> Option<&'static str> {
    let (_, rest) = flag.about.split_once("Default is ")?;
    let end = rest.find(". ").or_else(|| rest.strip_suffix('.').map(str::len)).unwrap_or(rest.len());
    let default = &rest[..end];
    let is_value = default.starts_with('\'') || !default.contains(' ') && !default.starts_with(['$', '-']);
    (is_value && default != "none").then(|| default.trim_matches('\''))
}

/// A value as TOML: without quotation marks if the flag takes a number or a truth value.
fn value(flag: &Flag, text: &str) -> String {
    let is_plain = match flag.takes {
        Takes::Value("<integer>" | "<float>") => text.parse::<i64>().is_ok_and(|number| number.to_string() == text),
        Takes::Value("<boolean>") => matches!(text, "true" | "false"),
        Takes::Value(_) | Takes::Nothing => false,
    };
    if is_plain { text.to_owned() } else { quoted(text) }
}

/// A text as TOML writes it; JSON's escapes are some of TOML's.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::{Origin, parse};
    use crate::settings::Settings;

    fn given(words: &[&str]) -> Vec<Given> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        parse(&words).expect("known flags")
    }

    #[test]
    fn what_is_shown_says_the_same_when_it_is_read() {
        let line = [
            "--http-port=9000",
            "--id=a\"b\\c\u{1b}\u{7f}",
            "--load-model=x",
            "--load-model=y",
            "--model-control-mode=explicit",
            "--disable-auto-complete-config",
            "--write-timeout=0.5",
            "--http-socket-mode=0660",
        ];
        let given = given(&line);
        let again = super::super::file::read("f", &text(&given)).expect("its own text");
        let plain = |given: &[Given]| {
            let mut all: Vec<_> = given.iter().map(|one| (one.flag.name, one.value.clone())).collect();
            all.sort();
            all
        };
        assert_eq!(plain(&again), plain(&given));
        let origin = Origin::Variable("NERITE_ID".into());
        let moved = Given { origin, ..given[1].clone() };
        assert!(text(&[moved]).contains("  # NERITE_ID\n"));
        assert!(text(&given).contains("http-port = 9000  # command line\n"));
    }

    #[test]
    fn the_defaults_that_are_shown_are_those_in_effect() {
        let usual = format!("{:?}", Settings { notes: vec![], ..Settings::read(&[]).expect("no flags") });
        let mut shown = 0;
        for flag in FLAGS.iter().filter(|flag| flag.takes != Takes::Nothing) {
            let Some(default) = default_of(flag) else { continue };
            let word = format!("--{}={default}", flag.name);
            let settings = Settings::read(&given(&[&word])).unwrap_or_else(|error| panic!("{word}: {error}"));
            assert_eq!(format!("{:?}", Settings { notes: vec![], ..settings }), usual, "{word}");
            shown += 1;
        }
        assert!(shown > 40, "{shown} defaults");
    }
}
