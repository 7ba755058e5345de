//! How does someone who writes a model run it in a terminal?

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nerite_python::{TerminalRun, run_in_terminal};
use nerite_repository::{ModelSource, Store, StoreOptions};
use nerite_request::setting::LoadOptions;
use tokio::signal::unix::{SignalKind, signal};

use crate::misused::{no_option, refuse};
use crate::plain::plain;

/// What `nerite model --help` prints.
pub const USAGE: &str = "\
Usage: nerite model run DIR [options]

Runs a Python model without a server: loads it as a server would, calls `execute` with the inputs that its configuration names, and prints the outputs
and the times. DIR is the model's directory, with its config.pbtxt and its versions. `breakpoint()` in the model opens Python's debugger. Ends with 0 if
all went well, with 1 if the model failed, with 2 if it cannot be run as asked.

  run                       run a model

      --input NAME=VALUE    an input: JSON, or @FILE with an array that numpy saved (.npy); otherwise a sample
      --batch N             rows of the samples of a model that batches; 1 without it
      --runs N              how often to call `execute`; 1 without it
      --pdb                 stop in Python's debugger at the beginning of `execute`, and where the model raises
      --profile             print the time of `execute` by function
      --version N           the version; the highest without it
      --python PATH         the interpreter, as --backend-config=python,interpreter names one
  -h, --help                print this
";

/// The most calls of `execute`, and rows of a sample.
const RUNS_MAX: u32 = 1_000_000;
const BATCH_MAX: u32 = 65_536;

/// The command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct CommandLine {
    directory: PathBuf,
    inputs: Vec<(String, String)>,
    batch: u32,
    runs: u32,
    pdb: bool,
    profile: bool,
    version: Option<i64>,
    python: Option<PathBuf>,
}

/// `nerite model`; `words` are those after that word.
pub fn main(words: &[String]) -> ExitCode {
    let command_line = match read(words) {
        Ok(Some(command_line)) => command_line,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(reason) => {
            return refuse("model", &reason);
        }
    };
    run(&command_line).unwrap_or_else(|reason| {
        eprintln!("nerite model run: {}", plain(&reason));
        ExitCode::from(2)
    })
}

/// The arguments; `None` if they ask for help.
fn read(words: &[String]) -> Result<Option<CommandLine>, String> {
    let mut command_line = CommandLine { batch: 1, runs: 1, ..CommandLine::default() };
    let mut words = words.iter().map(String::as_str);
    match words.next() {
        Some("run") => {}
        None | Some("-h" | "--help") => return Ok(None),
        Some(other) => return Err(format!("there is no 'nerite model {other}'; there is 'nerite model run DIR'")),
    }
    let mut directory = None;
    while let Some(word) = words.next() {
        let (name, joined) = match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value)),
            _ => (word, None),
        };
        let mut value = || joined.or_else(|| words.next()).ok_or_else(|| format!("{name} wants a value"));
        match name {
            "-h" | "--help" => return Ok(None),
            "--input" => command_line.inputs.push(input(value()?)?),
            "--batch" => command_line.batch = number(name, value()?, BATCH_MAX)?,
            "--runs" => command_line.runs = number(name, value()?, RUNS_MAX)?,
            "--pdb" => command_line.pdb = true,
            "--profile" => command_line.profile = true,
            "--version" => command_line.version = Some(i64::from(number(name, value()?, i32::MAX as u32)?)),
            "--python" => command_line.python = Some(value()?.into()),
            _ if !word.starts_with('-') && directory.is_none() => directory = Some(PathBuf::from(word)),
            _ if word.starts_with('-') => return Err(no_option(word, USAGE)),
            _ => return Err(format!("'{word}' is one directory too many")),
        }
    }
    if command_line.pdb && command_line.profile {
        return Err("--pdb and --profile exclude each other: a profile would count the time in the debugger".to_owned());
    }
    command_line.directory = directory.ok_or("which model? name its directory: nerite model run DIR")?;
    Ok(Some(command_line))
}

fn input(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("--input {text}: it wants NAME=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}

fn number(name: &str, text: &str, most: u32) -> Result<u32, String> {
    let found = text.parse().ok().filter(|number| (1..=most).contains(number));
    found.ok_or_else(|| format!("{name} {text}: it wants a number from 1 to {most}"))
}

fn run(command_line: &CommandLine) -> Result<ExitCode, String> {
    let source = source(&command_line.directory)?;
    let version = version(&source, command_line.version)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start a runtime: {error}"))?;
    // Ctrl-C also reaches the model's process, which is in the foreground too. This program ignores it, waits for the end of that process, and
    // removes its files.
    let _interrupts = runtime.block_on(async { signal(SignalKind::interrupt()) });
    let status = run_in_terminal(&TerminalRun {
        model: &source.model,
        version,
        model_dir: source.directory.path(),
        config: &source.config,
        interpreter: command_line.python.as_deref(),
        inputs: &command_line.inputs,
        batch: command_line.batch,
        runs: command_line.runs,
        pdb: command_line.pdb,
        profile: command_line.profile,
    })
    .map_err(|error| error.to_string())?;
    match status.code().map(u8::try_from) {
        Some(Ok(code)) => Ok(ExitCode::from(code)),
        _ => Err(format!("the model's process ended: {status}")),
    }
}

/// The model of that directory, read as a server would read it.
fn source(directory: &Path) -> Result<ModelSource, String> {
    let shown = directory.display();
    let full = directory.canonicalize().map_err(|cause| format!("cannot open the directory '{shown}': {cause}"))?;
    let (Some(repository), Some(name)) = (full.parent(), full.file_name().and_then(|name| name.to_str())) else {
        return Err(format!("'{shown}' is no model's directory"));
    };
    let options =
        StoreOptions { repositories: vec![repository.to_owned()], auto_complete: true, ..StoreOptions::default() };
    let store = Store::open(options).map_err(|error| error.to_string())?;
    let source = store.read(name, &LoadOptions::default()).map_err(|error| error.to_string())?;
    match source.config.backend_name() {
        "python" => Ok(source),
        other => Err(format!("model '{name}' has backend '{other}', and only Python models run in a terminal")),
    }
}

/// The version to run.
fn version(source: &ModelSource, command_line: Option<i64>) -> Result<i64, String> {
    let listed: Vec<_> = source.versions.iter().map(i64::to_string).collect();
    let listed = listed.join(", ");
    match command_line {
        Some(version) if source.versions.contains(&version) => Ok(version),
        Some(version) => Err(format!("model '{}' has no version {version} to serve; it has {listed}", source.model)),
        None => source.versions.last().copied().ok_or_else(|| {
            format!("model '{}' has no version: put model.py into a folder '1' of its directory", source.model)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expect: Result<Option<CommandLine>, &str>) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        assert_eq!(read(&words), expect.map_err(str::to_owned), "{line}");
    }

    #[test]
    fn the_command_line_names_a_directory_and_how_to_run_it() {
        let command_line = CommandLine { directory: "m".into(), batch: 1, runs: 1, ..CommandLine::default() };
        check("run m", Ok(Some(CommandLine { directory: "m".into(), ..command_line })));
        check(
            "run --input=A=[1] --input B=\"x=y\" --runs 5 --batch=3 m --profile --version 2 --python=/p",
            Ok(Some(CommandLine {
                directory: "m".into(),
                inputs: vec![("A".into(), "[1]".into()), ("B".into(), "\"x=y\"".into())],
                batch: 3,
                runs: 5,
                pdb: false,
                profile: true,
                version: Some(2),
                python: Some("/p".into()),
            })),
        );
        check("", Ok(None));
        check("run m --help", Ok(None));
        check("run", Err("which model? name its directory: nerite model run DIR"));
        check("walk m", Err("there is no 'nerite model walk'; there is 'nerite model run DIR'"));
        check("run m n", Err("'n' is one directory too many"));
        check("run m --input A", Err("--input A: it wants NAME=VALUE"));
        check("run m --runs 0", Err("--runs 0: it wants a number from 1 to 1000000"));
        check("run m --runs", Err("--runs wants a value"));
        check(
            "run m --pdb --profile",
            Err("--pdb and --profile exclude each other: a profile would count the time in the debugger"),
        );
    }
}
