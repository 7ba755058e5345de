//! How are the settings in force printed?
//!
//! As a file that `--config` reads: those that were given with their origins, the others as comments with the values in force.

use super::in_force::{Host, InForce, follows_from, of};
use crate::flags::{FLAGS, Flag, Given, SAME, Takes};
use crate::settings::Settings;

/// Lists whose values in force may differ from those that were given: defaults complete them, or a level `OFF` turns the others off.
const COMPLETED: [&str; 3] = ["metrics-config", "trace-config", "trace-level"];

/// The settings as a file. `settings` are those that `given` means.
pub(super) fn text(given: &[Given], settings: &Settings, host: Host) -> String {
    let mut text = String::new();
    let mut group = "";
    for flag in FLAGS.iter().filter(|flag| !matches!(flag.name, "help" | "config")) {
        if flag.group != group {
            group = flag.group;
            text.push_str(&format!("{}# {group}\n", if text.is_empty() { "" } else { "\n" }));
        }
        let in_force = of(settings, host, flag.name).filter(|_| flag.has_effect());
        let values: Vec<&Given> = given.iter().filter(|one| one.flag.name == flag.name).collect();
        match values.last() {
            Some(last) => {
                text.push_str(&line_of_given(flag, &values, last, in_force.as_ref()));
                let notes = settings.notes.iter().filter(|note| in_force.is_some() && is_about(note, flag));
                text.extend(notes.map(|note| format!("# {note}\n")));
            }
            None => text.push_str(&line_of_other(flag, given, in_force.as_ref())),
        }
    }
    text
}

/// Whether a log line is about a value of this flag.
fn is_about(note: &str, flag: &Flag) -> bool {
    let rest = note.strip_prefix("--").and_then(|note| note.strip_prefix(flag.name));
    rest.is_some_and(|rest| rest.starts_with(['=', ' ']))
}

/// The line of a setting that was given. What is in force is added if it is something else.
fn line_of_given(flag: &Flag, given: &[&Given], last: &Given, in_force: Option<&InForce>) -> String {
    let shown = match flag.takes {
        Takes::Nothing => "true".to_owned(),
        Takes::Value(_) if flag.repeats() => list(given.iter().map(|one| one.value.as_str())),
        Takes::Value(_) => value(flag, &last.value),
    };
    let more = match in_force {
        None => "; no effect here".to_owned(),
        Some(InForce::Unset(reason)) => format!("; not in force: {reason}"),
        Some(InForce::List(_)) if !COMPLETED.contains(&flag.name) => String::new(),
        Some(InForce::List(all)) if list(all.iter().map(String::as_str)) == shown => String::new(),
        Some(InForce::List(all)) => format!("; in force: {}", list(all.iter().map(String::as_str))),
        Some(InForce::One(one)) if value(flag, one) == shown || flag.takes == Takes::Nothing => String::new(),
        Some(InForce::One(one)) => format!("; in force: {}", value(flag, one)),
    };
    format!("{} = {shown}  # {}{more}\n", flag.name, last.origin)
}

/// The line of a setting that was not given: a comment.
fn line_of_other(flag: &Flag, given: &[Given], in_force: Option<&InForce>) -> String {
    let name = flag.name;
    let Some(in_force) = in_force else { return format!("# {name}: no effect here\n") };
    if let Some((_, newer)) = SAME.iter().find(|(older, _)| *older == name) {
        return format!("# {name}: an older name of {newer}\n");
    }
    let by_other = given.iter().find(|one| one.flag.setting() == name && one.flag.has_effect());
    if let Some(other) = by_other {
        return format!("# {name}: set by {}\n", other.flag.name);
    }
    let shown = match in_force {
        InForce::One(one) => value(flag, one),
        InForce::List(all) => list(all.iter().map(String::as_str)),
        InForce::Unset(reason) => return format!("# {name}: not set; {reason}\n"),
    };
    let why = follows_from(name).map(|source| format!("  # follows from {source}")).unwrap_or_default();
    format!("# {name} = {shown}{why}\n")
}

fn list<'v>(values: impl Iterator<Item = &'v str>) -> String {
    format!("[{}]", values.map(quoted).collect::<Vec<_>>().join(", "))
}

/// A value as TOML: without quotation marks if the flag takes a number or a truth value.
fn value(flag: &Flag, text: &str) -> String {
    let is_plain = match flag.takes {
        Takes::Value("<integer>" | "<float>" | "<bytes>") => {
            text.parse::<i64>().is_ok_and(|number| number.to_string() == text)
        }
        Takes::Value("<boolean>") | Takes::Nothing => matches!(text, "true" | "false"),
        Takes::Value(_) => false,
    };
    if is_plain { text.to_owned() } else { quoted(text) }
}

/// A text as TOML writes it; JSON's escapes are some of TOML's.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests {
    use super::super::file::read;
    use super::*;
    use crate::flags::{Origin, parse};

    const HOST: Host = Host { cores: 6, descriptors: 4096 };

    /// Settings with an effect that are not set by default, with the reason that a value would be wrong.
    const NOT_SET: [&str; 26] = [
        // No process, file or limit is meant by them unless one is named.
        "parent-pid",
        "log-file",
        "models-max-bytes",
        "model-config-name",
        "access-tokens-file",
        "http-socket",
        "grpc-socket",
        "http-header-forward-pattern",
        "grpc-header-forward-pattern",
        "grpc-max-connection-age",
        "grpc-max-connection-age-grace",
        "cache-config",
        "trace-file",
        // Without TLS there are no files of it.
        "http-server-cert",
        "http-server-key",
        "http-root-cert",
        "grpc-server-cert",
        "grpc-server-key",
        "grpc-root-cert",
        "metrics-server-cert",
        "metrics-server-key",
        "metrics-root-cert",
        // A value would give the page a port of its own.
        "ui-address",
        "ui-port",
        // A value would mean something else: a library that must be there, and backends that replace built-in ones.
        "cuda-library",
        "backend-directory",
    ];

    /// Settings that are kept open until the server starts. What they come to is shown.
    const RESOLVED_AT_START: [&str; 5] =
        ["http-thread-count", "connections-max", "connections-per-peer-max", "session-socket", "onnxruntime-library"];

    fn given(words: &[&str]) -> Vec<Given> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        parse(&words).expect("known flags")
    }

    fn settings(given: &[Given]) -> Settings {
        Settings { notes: vec![], ..noted(given) }
    }

    fn noted(given: &[Given]) -> Settings {
        Settings::read(given).unwrap_or_else(|error| panic!("{error}"))
    }

    fn shown(given: &[Given]) -> String {
        text(given, &noted(given), HOST)
    }

    #[test]
    fn what_has_no_effect_is_said_below_its_setting() {
        let words = [
            "--backend-config=python,zap=1",
            "--metrics-config=zap=1",
            "--http-socket-mode=0660",
            "--cache-directory=c",
        ];
        let text = shown(&given(&words));
        for below in [
            "backend-config = [\"python,zap=1\"]  # command line\n# --backend-config=python,zap has no effect: ",
            "\"histogram_latencies=false\"]\n# --metrics-config=zap has no effect: ",
            "http-socket-mode = \"0660\"  # command line\n# --http-socket-mode has no effect without --http-socket\n",
            "cache-directory = \"c\"  # command line; no effect here\n#",
        ] {
            assert!(text.contains(below), "{below}\n{text}");
        }
    }

    /// The line of a setting.
    fn line<'t>(text: &'t str, name: &str) -> &'t str {
        let is_of = |line: &&str| {
            let rest = line.strip_prefix("# ").unwrap_or(line).strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(" = ") || rest.starts_with(": "))
        };
        text.lines().find(is_of).unwrap_or_else(|| panic!("no line of {name}"))
    }

    #[track_caller]
    fn check_round_trip(words: &[&str]) {
        let given = given(words);
        let again = read("f", &shown(&given)).expect("its own text");
        let plain = |given: &[Given]| {
            let mut all: Vec<_> = given.iter().map(|one| (one.flag.name, one.value.clone())).collect();
            all.sort();
            all
        };
        assert_eq!(plain(&again), plain(&given));
        assert_eq!(format!("{:?}", settings(&again)), format!("{:?}", settings(&given)));
    }

    #[test]
    fn what_is_shown_says_the_same_when_it_is_read() {
        check_round_trip(&[]);
        check_round_trip(&[
            "--http-port=9000",
            "--id=a\"b\\c\u{1b}\u{7f}",
            "--load-model=x",
            "--load-model=y",
            "--model-control-mode=explicit",
            "--disable-auto-complete-config",
            "--write-timeout=0.5",
            "--http-socket-mode=0660",
        ]);
        check_round_trip(&["--model-store=m", "--response-cache-byte-size=4096", "--strict-model-config=true"]);
        check_round_trip(&["--trace-config=rate=5", "--trace-file=t", "--metrics-config=summary_latencies=true"]);
        check_round_trip(&[
            "--trace-config=mode=opentelemetry",
            "--allow-http=false",
            "--http-port=1",
            "--log-info=on",
        ]);
        check_round_trip(&["--memory-budget=4G", "--ui-port=9", "--http-thread-count=64", "--session-socket=off"]);
        let moved = Given { origin: Origin::Variable("NERITE_ID".into()), ..given(&["--id=a"])[0].clone() };
        assert!(shown(&[moved]).contains("  # NERITE_ID\n"));
    }

    #[test]
    fn every_setting_that_has_an_effect_shows_a_value() {
        let text = shown(&[]);
        for flag in FLAGS.iter().filter(|flag| !matches!(flag.name, "help" | "config")) {
            let (name, line) = (flag.name, line(&text, flag.name));
            let is_older = SAME.iter().any(|(older, _)| *older == name);
            match flag.has_effect() {
                false => assert_eq!(line, format!("# {name}: no effect here")),
                true if is_older => assert!(line.contains(": an older name of "), "{line}"),
                true if NOT_SET.contains(&name) => assert!(line.contains(": not set; "), "{line}"),
                true => assert!(line.starts_with(&format!("# {name} = ")), "{line}"),
            }
        }
        assert!(!text.contains("not given"), "{text}");
    }

    #[test]
    fn a_value_that_is_shown_means_the_same_when_it_is_given() {
        let usual = format!("{:?}", settings(&[]));
        let text = shown(&[]);
        let mut count = 0;
        for line in text.lines().filter_map(|line| line.strip_prefix("# ")) {
            let Some((name, _)) = line.split_once(" = ") else { continue };
            if RESOLVED_AT_START.contains(&name) {
                continue;
            }
            let given = read("f", line).unwrap_or_else(|fault| panic!("{line}: {fault}"));
            assert_eq!(format!("{:?}", settings(&given)), usual, "{line}");
            count += 1;
        }
        assert!(count > 70, "{count} values");
    }

    #[track_caller]
    fn check(words: &[&str], name: &str, expect: &str) {
        let text = shown(&given(words));
        assert_eq!(line(&text, name), expect, "{words:?}");
    }

    #[test]
    fn a_value_that_the_host_decides_is_shown_with_that() {
        check(&[], "http-thread-count", "# http-thread-count = 3  # follows from the host: its cores");
        check(&[], "connections-max", "# connections-max = 3072  # follows from the host: its limit of open files");
        check(&[], "connections-per-peer-max", "# connections-per-peer-max = 1536  # follows from connections-max");
        check(&["--http-thread-count=64"], "http-thread-count", "http-thread-count = 64  # command line; in force: 6");
    }

    #[test]
    fn a_value_that_another_setting_decides_is_shown() {
        check(&["--http-address=::1"], "metrics-address", "# metrics-address = \"::1\"  # follows from http-address");
        check(&["--ui-port=9"], "ui-address", "# ui-address = \"127.0.0.1\"  # follows from ui-port");
        check(&["--allow-metrics=false"], "ui", "# ui = false  # follows from allow-metrics, ui-address and ui-port");
        check(&["--model-store=m"], "model-repository", "# model-repository: set by model-store");
        check(&["--trace-config=rate=5"], "trace-rate", "# trace-rate = 5");
        check(&["--allow-http=false"], "http-address", "# http-address: not set; HTTP is off");
        check(&["--memory-budget=4G"], "memory-budget", "memory-budget = \"4G\"  # command line; in force: 4294967296");
        let levels = "trace-level = [\"OFF\", \"TENSORS\"]  # command line; in force: [\"OFF\"]";
        check(&["--trace-level=OFF", "--trace-level=TENSORS"], "trace-level", levels);
        check(&["--log-verbose=2"], "log-access", "# log-access = true");
        let resource = ["--trace-config=mode=opentelemetry", "--trace-config=opentelemetry,resource=a=b"];
        assert!(line(&shown(&given(&resource)), "trace-config").contains("\"opentelemetry,resource=a=b\""));
        let alone = ["--allow-http=false", "--http-socket=s"];
        check(&alone, "allow-http", "allow-http = false  # command line");
        check(&alone, "http-port", "# http-port: not set; there is a Unix socket and no port");
        check(&alone, "http-socket", "http-socket = \"s\"  # command line");
        let off = "http-port = 9  # command line; not in force: HTTP is off";
        check(&["--allow-http=false", "--http-port=9"], "http-port", off);
        let idle = "rate-limit-resource = [\"a:1\"]  # command line";
        check(&["--rate-limit-resource=a:1"], "rate-limit-resource", idle);
        let accepted = "buffer-manager-thread-count = 2  # command line; no effect here";
        check(&["--buffer-manager-thread-count=2"], "buffer-manager-thread-count", accepted);
    }
}
