//! How are the steps of a task run?
//!
//! ```text
//!   steps ─► each runs, also if another one failed ─► 1 to 5 tests failed: these run once more, alone ─► summary, exit status
//! ```

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use tempfile::TempDir;

use crate::capacity;
use crate::deny::MANIFESTS;
use crate::output::{self, Output};
use crate::release::{REPORT, commit_of, passed_line};
use crate::results::Results;
use crate::steps::{Step, Work};
use crate::suite::{Runner, Suite};
use crate::summary::{self, Done, End, Limits, Tests};

/// The exit status if something is not to be had, such as the packages of a registry that does not answer: `EX_UNAVAILABLE` of sysexits.h.
/// `tests/setup_venv.py` has the same.
pub const UNAVAILABLE: u8 = 69;
/// The most failed tests that get a second trial. More are no matter of chance.
const SECOND_TRIALS_MAX: usize = 5;
/// The seed of the property tests, so that a run tests the same values as the run before.
const SEED: &str = "20261128";

/// A run of a task.
struct Task<'a> {
    root: &'a Path,
    /// Folder for temporary files of all steps, removed at the end.
    temporary: TempDir,
    has_nextest: bool,
    limits: Limits,
}

/// Why a task cannot go on.
enum Stop {
    /// Something is not to be had. A line of output has said so.
    Unavailable,
    Other(String),
}

impl From<String> for Stop {
    fn from(reason: String) -> Stop {
        Stop::Other(reason)
    }
}

/// Runs the steps, prints the summary, and returns the exit status.
pub fn run(root: &Path, steps: &[Step], limits: Limits) -> ExitCode {
    match Task::new(root, limits).map_err(Stop::from).and_then(|task| task.all(steps)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Stop::Unavailable) => ExitCode::from(UNAVAILABLE),
        Err(Stop::Other(reason)) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

impl<'a> Task<'a> {
    fn new(root: &'a Path, limits: Limits) -> Result<Task<'a>, String> {
        capacity::check(root)?;
        // Tests run servers as other users, which make files there too.
        let mut folder = tempfile::Builder::new();
        folder.prefix("nerite-").permissions(Permissions::from_mode(0o1777));
        let temporary = folder.tempdir().map_err(|cause| format!("no folder for temporary files: {cause}"))?;
        // The mode of a new folder is limited by the umask.
        std::fs::set_permissions(temporary.path(), Permissions::from_mode(0o1777))
            .map_err(|cause| format!("{}: {cause}", temporary.path().display()))?;
        let nextest = Command::new("cargo").args(["nextest", "--version"]).output();
        let has_nextest = nextest.is_ok_and(|output| output.status.success());
        Ok(Task { root, temporary, has_nextest, limits })
    }

    /// Whether everything passed.
    fn all(&self, steps: &[Step]) -> Result<bool, Stop> {
        let commit = commit_of(self.root).ok();
        let mut done: Vec<Done> = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            println!("\n== {}/{} {}", number + 1, steps.len(), step.about);
            let start = Instant::now();
            let missing = step.needs.iter().find(|needed| !done.iter().any(|one| one.is_ready(needed)));
            let end = match missing {
                Some(missing) => End::NotRun(format!("it needs the step '{missing}'")),
                None => self.end_of(step)?,
            };
            let seconds = start.elapsed().as_secs();
            println!("== {seconds} s");
            done.push(Done { about: step.about, seconds, end });
        }
        self.try_again(&mut done)?;
        let mut text = summary::lines(&done, self.limits).join("\n");
        println!("\n{text}");
        let is_good = summary::is_good(&done, self.limits);
        let unchanged = commit_of(self.root).ok().filter(|now| commit.as_ref() == Some(now));
        if let Some(commit) = unchanged
            && is_good
            && self.limits == Limits::None
        {
            text = format!("{}\n{text}", passed_line(&commit));
        }
        let report = self.root.join(REPORT);
        std::fs::write(&report, format!("{text}\n")).map_err(|cause| format!("{}: {cause}", report.display()))?;
        Ok(is_good)
    }

    fn end_of(&self, step: &Step) -> Result<End, Stop> {
        match step.work {
            Work::Command(words) => {
                let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
                let output = self.output(&words)?;
                if output.code == Some(i32::from(UNAVAILABLE)) {
                    return self.unavailable(output.reason());
                }
                Ok(if output.is_success() { End::Passed } else { End::Failed(output.reason()) })
            }
            Work::Fetch => self.fetch(),
            Work::Tests(suite) => self.test(suite),
        }
    }

    fn fetch(&self) -> Result<End, Stop> {
        for manifest in MANIFESTS {
            let words = |more: &[&str]| {
                let fetch = ["cargo", "fetch", "--quiet", "--locked", "--manifest-path", manifest];
                fetch.iter().chain(more).map(|word| (*word).to_owned()).collect::<Vec<String>>()
            };
            // What the cache has need not be asked for.
            if output::quiet(&mut self.command(&words(&["--offline"]))?)?.is_success() {
                continue;
            }
            let output = self.output(&words(&[]))?;
            if !output.is_success() && output.text.contains("--locked") {
                return Ok(End::Failed(output.reason()));
            }
            if !output.is_success() {
                let reason = format!("no registry: cargo fetch --manifest-path {manifest}: {}", output.reason());
                println!("{reason}");
                return self.unavailable(reason);
            }
        }
        Ok(End::Passed)
    }

    /// The gate ends where something is not to be had. Where everything is tested, the step alone does not run.
    fn unavailable(&self, reason: String) -> Result<End, Stop> {
        if self.limits == Limits::Gate { Err(Stop::Unavailable) } else { Ok(End::Unavailable(reason)) }
    }

    fn test(&self, suite: Suite) -> Result<End, Stop> {
        let Some(runner) = suite.runner(self.has_nextest) else { return Ok(End::Passed) };
        let more = suite.words(runner).into_iter().map(str::to_owned).collect();
        let (results, error) = self.results(runner, suite, more)?;
        Ok(End::Tests(Tests { suite, runner, results, error, flaky: Vec::new() }))
    }

    /// The results, and what is wrong apart from failed tests.
    fn results(&self, runner: Runner, suite: Suite, more: Vec<String>) -> Result<(Results, Option<String>), Stop> {
        let file = runner.results_file(self.root);
        if let Some(file) = &file {
            // A run that ends early must not be taken for the last one.
            let _ = std::fs::remove_file(file);
        }
        let words = [runner.command(file.as_deref().unwrap_or(self.root)), more].concat();
        let mut command = self.command(&words)?;
        let output = output::shown(command.env("NERITE_BIN", self.root.join(suite.program())))?;
        let results = runner.read(self.root, &output.text);
        let error = match &results {
            Err(reason) => Some(format!("{reason}; {}", output.reason())),
            Ok(results) if results.failed.is_empty() && !output.is_success() => Some(output.reason()),
            Ok(_) => None,
        };
        Ok((results.unwrap_or_default(), error))
    }

    /// Runs the failed tests once more with nothing beside them, if they are few. Those that pass are flaky.
    fn try_again(&self, done: &mut [Done]) -> Result<(), Stop> {
        let tests = || done.iter().filter_map(Done::tests);
        let count: usize = tests().map(|tests| tests.results.failed.len()).sum();
        if !(1..=SECOND_TRIALS_MAX).contains(&count) {
            return Ok(());
        }
        println!("\n== second trial of {count} failed");
        for tests in done.iter_mut().filter_map(Done::tests_mut) {
            let names: Vec<&str> = tests.results.failed.iter().map(|failure| failure.name.as_str()).collect();
            if names.is_empty() {
                continue;
            }
            let (again, _) = self.results(tests.runner, tests.suite, tests.runner.only(&names))?;
            tests.note_second_trial(&again);
        }
        Ok(())
    }

    fn output(&self, words: &[String]) -> Result<Output, String> {
        output::shown(&mut self.command(words)?)
    }

    fn command(&self, words: &[String]) -> Result<Command, String> {
        let (program, words) = words.split_first().ok_or("a command without words")?;
        let mut command = Command::new(self.program(program));
        command.args(words).current_dir(self.root);
        command.env("TMPDIR", self.temporary.path()).env("PROPTEST_RNG_SEED", SEED);
        // Rust tests find Python's packages by this variable, as in a shell where the environment is active.
        command.env("VIRTUAL_ENV", self.root.join(".venv"));
        Ok(command)
    }

    fn program(&self, name: &str) -> PathBuf {
        match name {
            "cargo" => std::env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from),
            // The file may be gone, because the step that builds the workspace replaces it.
            "xtask" => "/proc/self/exe".into(),
            _ if name.contains('/') => self.root.join(name),
            _ => name.into(),
        }
    }
}
