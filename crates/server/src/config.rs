//! Which settings hold, and where did each come from?
//!
//! ```text
//!   --config FILE ─┐
//!   NERITE_* ──────┼─ complete ─► flags with their origins ─► Settings
//!   command line ──┘
//! ```

mod environment;
mod file;
mod show;

use std::ffi::OsString;
use std::process::ExitCode;

use nerite_config::{did_you_mean, nearest};

use crate::flags::{Command, FLAGS, Flag, Given, Origin, Takes, parse};
use crate::plain::plain;
use crate::settings::{Settings, SettingsError};

pub use environment::is_address_of_service;

/// What `nerite config --help` prints.
pub const USAGE: &str = "\
Usage: nerite config <command> [options]

  check FILE                read a file of settings and say what is wrong with it, with lines
  show [flags]              print the settings that `nerite serve [flags]` would have, as a file, and where each came from

      --config FILE         the file to show settings of (also: NERITE_CONFIG)
  -h, --help                print this
";

/// The flag that names the file.
const FLAG: &str = "config";

/// `nerite config`; `words` are those after the word `config`.
pub fn main(words: &[String]) -> ExitCode {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["-h" | "--help" | "help"] => Ok(USAGE.to_owned()),
        ["check", path] if !path.starts_with('-') => check(path),
        ["show", ref flags @ ..] => shown(flags),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("{}", reason.trim_end());
            ExitCode::FAILURE
        }
    }
}

/// The flags of the command line, and those of the environment and of the file that they do not override. Also the log lines about variables.
pub fn complete(given: Vec<Given>) -> Result<(Vec<Given>, Vec<String>), String> {
    let text = |word: OsString| word.to_string_lossy().into_owned();
    let (variables, notes) = environment::read(std::env::vars_os().map(|(name, value)| (text(name), text(value))))?;
    let named = |given: &[Given]| given.iter().rfind(|given| given.flag.name == FLAG).map(|given| given.value.clone());
    let path = named(&given).or_else(|| named(&variables)).filter(|path| !path.is_empty());
    let filed = path.map(|path| file::open(&path)).transpose()?.unwrap_or_default();
    Ok((merge([given, variables, filed]), notes))
}

/// A fault of the settings, with the place of the value if that is not the command line.
pub fn locate(error: &SettingsError, given: &[Given]) -> String {
    if let SettingsError::Value(bad) = error
        && let Some(Given { origin, .. }) = given.iter().rfind(|given| given.flag.name == bad.flag)
        && *origin != Origin::CommandLine
    {
        return format!("{origin}: {}: {}", bad.flag, bad.reason);
    }
    error.to_string()
}

/// For each setting, the values from the highest place that sets it: lists are replaced, not joined.
fn merge(places: [Vec<Given>; 3]) -> Vec<Given> {
    let all: Vec<Given> = places.into_iter().flatten().collect();
    let rank_of =
        |setting: &str| all.iter().filter(|one| one.flag.setting() == setting).map(|one| one.origin.rank()).max();
    let is_off = |one: &Given| matches!(one.flag.takes, Takes::Nothing) && one.value == environment::OFF;
    let highest = all.iter().filter(|one| Some(one.origin.rank()) == rank_of(one.flag.setting()));
    highest.filter(|one| !is_off(one)).cloned().collect()
}

/// The flag for a setting of this name, or why there is none.
fn find(name: &str) -> Result<&'static Flag, String> {
    if name == "help" {
        return Err("'help' is no setting".to_owned());
    }
    let names = || FLAGS.iter().map(|flag| flag.name).filter(|name| *name != "help");
    FLAGS
        .iter()
        .find(|flag| flag.name == name)
        .ok_or_else(|| format!("there is no setting '{}'{}", plain(name), did_you_mean(nearest(name, names()))))
}

fn check(path: &str) -> Result<String, String> {
    let given = file::open(path)?;
    let settings = read_all(&given).map_err(|faults| {
        let place = |text: String| match text {
            text if text.starts_with(path) => text,
            text => format!("{path}: {}", text.trim_end()),
        };
        faults.into_iter().map(place).collect::<Vec<_>>().join("\n")
    })?;
    let notes = settings.notes.iter().map(|note| format!("{path}: note: {note}"));
    let lines: Vec<String> = notes.chain([format!("{path}: {} settings, and they hold", given.len())]).collect();
    Ok(lines.join("\n") + "\n")
}

/// The settings, or all their faults. Invalid values are left out in order to find the others. A contradiction between settings is reported last,
/// because it may follow from the values that were left out.
fn read_all(given: &[Given]) -> Result<Settings, Vec<String>> {
    let (mut given, mut faults) = (given.to_vec(), Vec::new());
    loop {
        let error = match Settings::read(&given) {
            Ok(settings) if faults.is_empty() => return Ok(settings),
            Ok(_) => return Err(faults),
            Err(error) => error,
        };
        let count = given.len();
        match &error {
            SettingsError::Value(bad) => {
                faults.push(locate(&error, &given));
                given.retain(|one| one.flag.name != bad.flag);
            }
            SettingsError::Contradiction(_) if faults.is_empty() => faults.push(locate(&error, &given)),
            SettingsError::Contradiction(_) => {}
        }
        if given.len() == count {
            return Err(faults);
        }
    }
}

fn shown(words: &[&str]) -> Result<String, String> {
    let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    let given = parse(&words).map_err(|error| Command::Serve.refuse(&error))?;
    let (given, _) = complete(given)?;
    Settings::read(&given).map_err(|error| locate(&error, &given))?;
    Ok(show::text(&given))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(line: &str, origin: &Origin) -> Vec<Given> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let given = parse(&words).expect("known flags");
        given.into_iter().map(|one| Given { origin: origin.clone(), ..one }).collect()
    }

    #[track_caller]
    fn check_merge(command_line: &str, environment: &str, filed: &str, expect: &[(&str, &str)]) {
        let file = Origin::File { path: "f".into(), line: 1 };
        let merged = merge([
            given(command_line, &Origin::CommandLine),
            given(environment, &Origin::Variable("V".into())),
            given(filed, &file),
        ]);
        let found: Vec<_> = merged.iter().map(|one| (one.flag.name, one.value.as_str())).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn the_command_line_wins_over_the_environment_and_that_over_the_file() {
        check_merge("--id=a", "--id=b", "--id=c", &[("id", "a")]);
        check_merge("", "--id=b", "--id=c --http-port=1", &[("id", "b"), ("http-port", "1")]);
        check_merge("", "", "--id=c", &[("id", "c")]);
        let flag = FLAGS.iter().find(|flag| flag.name == "disable-auto-complete-config").expect("it is there");
        let one = |value: &str, origin| Given { flag, value: value.to_owned(), origin };
        let off = one(environment::OFF, Origin::Variable("V".into()));
        let on = one("", Origin::File { path: "nerite.toml".into(), line: 1 });
        assert!(merge([vec![], vec![off], vec![on.clone()]]).is_empty());
        assert_eq!(merge([vec![], vec![], vec![on]]).len(), 1);
    }

    #[test]
    fn lists_are_replaced_whatever_name_they_go_by() {
        check_merge(
            "--model-repository=a --model-repository=b",
            "",
            "--model-store=c",
            &[("model-repository", "a"), ("model-repository", "b")],
        );
        check_merge("--model-store=a", "", "--model-repository=b", &[("model-store", "a")]);
        check_merge("--load-model=a", "--load-model=b --load-model=c", "", &[("load-model", "a")]);
    }

    #[test]
    fn all_values_that_do_not_hold_are_named_at_once() {
        let file = Origin::File { path: "nerite.toml".into(), line: 7 };
        let read = |line: &str| read_all(&given(line, &file)).map(drop);
        let port = "nerite.toml:7: http-port: Invalid option value. Got many".to_owned();
        let rate = "nerite.toml:7: exit-timeout-secs: Invalid option value. Got soon".to_owned();
        assert_eq!(read("--http-port=80"), Ok(()));
        assert_eq!(read("--http-port=many --exit-timeout-secs=soon --id=x"), Err(vec![port.clone(), rate]));
        let empty = "nerite.toml:7: model-config-name: Error: empty argument for --model-config-name".to_owned();
        assert_eq!(read("--model-config-name="), Err(vec![empty.clone()]));
        assert_eq!(read("--http-port=many --model-config-name="), Err(vec![port, empty]));
    }

    #[test]
    fn a_fault_names_where_the_value_stands() {
        let read = |given: &[Given]| locate(&Settings::read(given).expect_err("no port"), given);
        let file = Origin::File { path: "nerite.toml".into(), line: 7 };
        let line = "--http-port=many";
        assert_eq!(read(&given(line, &file)), "nerite.toml:7: http-port: Invalid option value. Got many");
        let variable = Origin::Variable("NERITE_HTTP_PORT".into());
        assert_eq!(read(&given(line, &variable)), "NERITE_HTTP_PORT: http-port: Invalid option value. Got many");
        assert!(read(&given(line, &Origin::CommandLine)).starts_with("Bad option: \"--http-port\"."));
    }
}
