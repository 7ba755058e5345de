//! Which settings hold, and where did each come from?
//!
//! ```text
//!   --config FILE ─┐
//!   NERITE_* ──────┼─ complete ─► flags with their origins ─► Settings
//!   command line ──┘
//! ```

mod check;
mod environment;
mod file;
mod in_force;
mod paths;
mod show;

use std::ffi::OsString;
use std::process::ExitCode;

use nerite_config::{did_you_mean, nearest};

use self::check::{checked, is_file_or_flags};
use self::in_force::Host;
use crate::flags::{Command, FLAGS, Flag, Given, Origin, Takes, parse};
use crate::misused::{none_of, refuse};
use crate::plain::plain;
use crate::settings::backends::absent;
use crate::settings::{Settings, SettingsError};

pub use environment::is_address_of_service;

/// What `nerite config --help` prints.
pub const USAGE: &str = "\
Usage: nerite config <command> [options]

  check FILE                read a file of settings and say what is wrong with it, with lines, and with the files and directories that it names
  check [flags]             the same of the settings that `nerite serve [flags]` would have
  show [flags]              print these settings as a file: the values in force, and where each came from

      --models              of check: load the models of the start as well, and end
      --no-files            do not look at the files and directories, because the settings are for another host
      --config FILE         the file to check or show settings of, among flags (also: NERITE_CONFIG)
  -h, --help                print this
";

/// The flag that names the file.
const FLAG: &str = "config";

/// Loads the models of the start with these settings, and unloads them.
type LoadModels = fn(Settings) -> Result<(), String>;

/// `nerite config`; `words` are those after the word `config`.
pub fn main(words: &[String], load_models: LoadModels) -> ExitCode {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["-h" | "--help" | "help"] | ["check", "-h" | "--help"] => Ok(USAGE.to_owned()),
        ["check", ref words @ ..] if is_file_or_flags(words) => checked(words, load_models),
        ["show", ref flags @ ..] => shown(flags),
        _ => return refuse("config", &fault_of(&words)),
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

/// What is wrong with these words.
fn fault_of(words: &[&str]) -> String {
    match *words {
        [] => "a command is missing".to_owned(),
        ["check", ..] => "'check' wants one file, or flags of `nerite serve`".to_owned(),
        [word, ..] => none_of("command", word, &["check", "show"]),
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

/// The settings that `nerite serve` would have with these flags, and notes about variables.
fn effective(words: &[&str]) -> Result<(Vec<Given>, Vec<String>), String> {
    let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    let given = parse(&words).map_err(|error| Command::Serve.refuse(&error))?;
    complete(given)
}

fn shown(words: &[&str]) -> Result<String, String> {
    let (given, _) = effective(words)?;
    let mut settings = Settings::read(&given).map_err(|error| locate(&error, &given))?;
    settings.notes.extend(absent(&settings));
    Ok(show::text(&given, &settings, Host::this()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags of this line, as if they stood at `origin`.
    pub(super) fn given(line: &str, origin: &Origin) -> Vec<Given> {
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
