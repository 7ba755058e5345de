//! What is wrong with a file of settings, or with those that a server would have?

use std::collections::BTreeSet;

use super::file::{self, Fault};
use super::{LoadModels, effective, paths};
use crate::flags::{Given, Origin};
use crate::settings::backends::absent;
use crate::settings::{Settings, SettingsError};

/// The option that leaves paths out.
const NO_FILES: &str = "--no-files";

/// Seconds that the unit and the deployment in `packaging` give a stop. After these, the system kills the server.
const STOP_SECONDS_MAX: u64 = 45;

/// The option that loads models.
const MODELS: &str = "--models";

/// Whether these words name one file, or begin with a flag.
pub(super) fn is_file_or_flags(words: &[&str]) -> bool {
    let mut words = words.iter().filter(|word| !is_own(word));
    let first = words.next();
    first.is_some_and(|first| first.starts_with('-') || words.next().is_none())
}

/// Whether it is an option of this command, and not a flag of `nerite serve`.
fn is_own(word: &str) -> bool {
    [NO_FILES, MODELS].contains(&word)
}

/// `nerite config check`: a file, or flags of `nerite serve`.
pub(super) fn checked(words: &[&str], load_models: LoadModels) -> Result<String, String> {
    let looks_at_files = !words.contains(&NO_FILES);
    let loads_models = words.contains(&MODELS);
    let words: Vec<&str> = words.iter().filter(|word| !is_own(word)).copied().collect();
    let (path, given, notes) = match words[..] {
        [path] if !path.starts_with('-') => {
            let (given, faults) = file::open_partly(path)?;
            let notes = read_all(Some(path), &given, faults, looks_at_files).map_err(file::lines)?;
            (Some(path), given, notes)
        }
        _ => {
            let (given, notes) = effective(&words)?;
            let settings = read_all(None, &given, vec![], looks_at_files).map_err(file::lines)?;
            (None, given, [settings, notes].concat())
        }
    };
    if loads_models {
        let settings = Settings::read(&given).map_err(|error| error.to_string())?;
        load_models(settings)?;
    }
    Ok(report(path, &given, notes))
}

/// What is said of settings without a fault.
fn report(path: Option<&str>, given: &[Given], notes: Vec<String>) -> String {
    let count = given.iter().map(|one| one.flag.name).collect::<BTreeSet<_>>().len();
    let notes = notes.into_iter().map(|note| format!("note: {note}"));
    notes.chain([holds(count)]).map(|line| placed(path, &line) + "\n").collect()
}

fn holds(count: usize) -> String {
    match count {
        0 => "no settings".to_owned(),
        1 => "1 setting, and it holds".to_owned(),
        _ => format!("{count} settings, and they hold"),
    }
}

/// Notes about these settings, or `faults` and all faults of the values and of what they name. `path` is the file that is checked alone, if one is. Settings with
/// a fault are left out in order to find the others. A contradiction between settings is reported only if no value was left out before, because it may follow
/// from that.
fn read_all(
    path: Option<&str>,
    given: &[Given],
    mut faults: Vec<Fault>,
    looks_at_files: bool,
) -> Result<Vec<String>, Vec<Fault>> {
    let mut given = given.to_vec();
    let (mut contradictions, mut is_whole) = (Vec::new(), faults.is_empty());
    let settings = loop {
        let error = match Settings::read_apart(&given) {
            Ok(settings) => break Some(settings),
            Err(error) => error,
        };
        let count = given.len();
        match error {
            SettingsError::Value(bad) => {
                faults.push(fault_of_value(path, &given, bad.flag, &bad.reason));
                given.retain(|one| one.flag.name != bad.flag);
                is_whole = false;
            }
            SettingsError::Contradiction { text, without } => {
                if is_whole {
                    contradictions.push(Fault { line: None, text: placed(path, &text) });
                }
                given.retain(|one| !without.contains(&one.flag.name));
            }
        }
        if given.len() == count {
            break None;
        }
    };
    // Without one of the ports the next contradiction might be of a default.
    if is_whole && let Some(Err(error)) = settings.as_ref().map(Settings::check_places) {
        contradictions.push(Fault { line: None, text: placed(path, &error.to_string()) });
    }
    faults.append(&mut contradictions);
    // A file may leave the repository to the command line.
    if path.is_none() && settings.as_ref().is_some_and(|settings| settings.models.repositories.is_empty()) {
        faults.push(Fault { line: None, text: "--model-repository must be specified".to_owned() });
    }
    let mut notes = settings.as_ref().map(|settings| settings.notes.clone()).unwrap_or_default();
    notes.extend(settings.as_ref().and_then(long_stop));
    let looked_at = settings.as_ref().filter(|_| looks_at_files);
    notes.extend(looked_at.map(absent).unwrap_or_default());
    for fault in looked_at.into_iter().flat_map(paths::faults) {
        if fault.is_note {
            notes.push(format!("{}: {}", fault.flag, fault.text));
        } else {
            faults.push(fault_of_value(path, &given, fault.flag, &fault.text));
        }
    }
    if faults.is_empty() { Ok(notes) } else { Err(faults) }
}

/// What to know about settings with which a stop may take longer than the packaged unit and deployment allow.
fn long_stop(settings: &Settings) -> Option<String> {
    let (drain, exit) = (settings.drain_seconds, settings.exit_timeout_secs);
    let total = drain + exit;
    (total > STOP_SECONDS_MAX).then(|| {
        format!(
            "a stop may take {total} s: drain-seconds {drain} and exit-timeout-secs {exit}. The packaged unit (TimeoutStopSec) and deployment \
             (terminationGracePeriodSeconds) give it {STOP_SECONDS_MAX} s; raise theirs, or requests are lost"
        )
    })
}

/// A fault of the value of a flag, with the place of the value. A default, or a variable that is no setting, has none.
fn fault_of_value(path: Option<&str>, given: &[Given], flag: &str, reason: &str) -> Fault {
    let reason = reason.trim_end();
    match given.iter().rfind(|one| one.flag.name == flag || one.flag.setting() == flag).map(|one| &one.origin) {
        Some(origin) => {
            let line = if let Origin::File { line, .. } = origin { Some(*line) } else { None };
            Fault { line, text: format!("{origin}: {flag}: {reason}") }
        }
        None => Fault { line: None, text: placed(path, &format!("{flag}: {reason}")) },
    }
}

/// A line with the file that it is about, if one is checked alone.
fn placed(path: Option<&str>, line: &str) -> String {
    let line = line.trim_end();
    path.map_or_else(|| line.to_owned(), |path| format!("{path}: {line}"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::given;
    use super::*;

    #[test]
    fn all_values_that_do_not_hold_are_named_at_once() {
        let file = Origin::File { path: "nerite.toml".into(), line: 7 };
        let read = |line: &str| {
            let found = read_all(Some("nerite.toml"), &given(line, &file), vec![], false);
            found.map(drop).map_err(file::lines)
        };
        let port = "nerite.toml:7: http-port: Invalid option value. Got many".to_owned();
        let rate = "nerite.toml:7: exit-timeout-secs: Invalid option value. Got soon".to_owned();
        assert_eq!(read("--http-port=80"), Ok(()));
        assert_eq!(read("--http-port=many --exit-timeout-secs=soon --id=x"), Err(format!("{port}\n{rate}")));
        let empty = "nerite.toml:7: model-config-name: Error: empty argument for --model-config-name".to_owned();
        assert_eq!(read("--model-config-name="), Err(empty.clone()));
        assert_eq!(read("--http-port=many --model-config-name="), Err(format!("{port}\n{empty}")));
    }

    #[track_caller]
    fn check_file(text: &str, expect: Result<&str, &str>) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f").display().to_string();
        std::fs::write(&path, text).expect("a file");
        let found = checked(&[&path], |_| Ok(())).map_err(|text| text + "\n");
        let found = found.map(|text| text.replace(&path, "f")).map_err(|text| text.replace(&path, "f"));
        assert_eq!(found.as_deref().map_err(String::as_str), expect);
    }

    #[test]
    fn a_file_is_checked_to_its_end_and_its_faults_come_in_the_order_of_its_lines() {
        check_file("", Ok("f: no settings\n"));
        check_file("id = 'a'", Ok("f: 1 setting, and it holds\n"));
        check_file("load-model = ['a', 'b']\nmodel-control-mode = 'explicit'", Ok("f: 2 settings, and they hold\n"));
        check_file(
            "log-format = 'xml'\nhttp-prot = 3\nexit-timeout-secs = 'soon'\nhttp-port = 'many'\n[x]\nid = 'a'",
            Err("f:1: log-format: invalid argument for --log-format: it is default, ISO8601 or json. Got xml\n\
                 f:2: there is no setting 'http-prot'; did you mean 'http-port'?\n\
                 f:3: exit-timeout-secs: Invalid option value. Got soon\n\
                 f:4: http-port: Invalid option value. Got many\n\
                 f:5: 'x' is a table; settings stand at the top, as `http-port = 8000`\n"),
        );
        let contradiction = "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.";
        check_file("load-model = 'a'", Err(&format!("f: {contradiction}\n")));
        check_file(
            "load-model = 'a'\nmodel-contrl-mode = 'explicit'",
            Err("f:2: there is no setting 'model-contrl-mode'; did you mean 'model-control-mode'?\n"),
        );
    }

    #[test]
    fn contradictions_and_paths_are_reported_with_everything_else() {
        let tls = "f: --http-use-ssl needs --http-server-cert=<file> and --http-server-key=<file>, in PEM format";
        let load = "f: Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.";
        let port = "f: The server cannot listen to GRPC requests and metrics requests at the same address and port 0.0.0.0:8002";
        let repository = "f:2: model-repository: there is no directory '/no/models'; make it, or name another";
        check_file(
            "load-model = 'a'\nmodel-repository = '/no/models'\nhttp-use-ssl = true\ngrpc-port = 8002",
            Err(&format!("{repository}\n{tls}\n{load}\n{port}\n")),
        );
        let many = "f:3: http-port: Invalid option value. Got many";
        let text = "load-model = 'a'\nmodel-repository = '/no/models'\nhttp-port = 'many'\nexit-timeout-secs = 'soon'";
        // The ports are read before the models: the contradiction might follow from the one that was left out.
        let soon = "f:4: exit-timeout-secs: Invalid option value. Got soon";
        check_file(text, Err(&format!("{repository}\n{many}\n{soon}\n")));
        check_file(
            "backend-directory = '/no/backends'",
            Ok("f: note: backend-directory: there is no directory '/no/backends'; make it, or name another\n\
                f: 1 setting, and it holds\n"),
        );
    }

    #[test]
    fn a_stop_that_takes_longer_than_the_unit_allows_is_noted() {
        check_file("drain-seconds = 15", Ok("f: 1 setting, and it holds\n"));
        check_file(
            "drain-seconds = 16",
            Ok(
                "f: note: a stop may take 46 s: drain-seconds 16 and exit-timeout-secs 30. The packaged unit (TimeoutStopSec) and deployment \
                (terminationGracePeriodSeconds) give it 45 s; raise theirs, or requests are lost\nf: 1 setting, and it holds\n",
            ),
        );
    }

    #[test]
    fn flags_are_checked_as_a_server_would_read_them() {
        let of = |words: &[&str]| checked(words, |_| Ok(())).map_err(|text| text + "\n");
        assert!(of(&["--id=a", "--model-repository=/"]).is_ok_and(|text| text.ends_with("settings, and they hold\n")));
        let port = "command line: http-port: Invalid option value. Got many\n";
        let repository =
            "command line: model-repository: there is no directory '/no/models'; make it, or name another\n";
        let words = ["--http-port=many", "--model-store=/no/models"];
        assert_eq!(of(&words), Err(format!("{port}{repository}")));
        assert_eq!(of(&["--no-files", words[0], words[1]]), Err(port.to_owned()));
        assert_eq!(of(&["--id=a"]), Err("--model-repository must be specified\n".to_owned()));
        for words in
            [&["f"][..], &["f", NO_FILES], &[NO_FILES, "f"], &[MODELS, "f"], &["--id=a", "b"], &[NO_FILES, "--id=a"]]
        {
            assert!(is_file_or_flags(words), "{words:?}");
        }
        for words in [&[][..], &[NO_FILES], &["f", "g"], &["f", "--id=a"]] {
            assert!(!is_file_or_flags(words), "{words:?}");
        }
    }

    #[test]
    fn a_named_pipe_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.expect("mkfifo is a program of POSIX").success());
        let refused = checked(&[&path.display().to_string()], |_| Ok(())).expect_err("nobody writes to it");
        assert!(refused.contains("it is a named pipe"), "{refused}");
    }
}
