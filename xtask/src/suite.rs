//! How is each suite of tests run, and how is one test of it run alone?
//!
//! ```text
//!   suite ─► command ─► a file of results (JUnit), or the text of libtest ─► Results
//!         └► command for the tests that failed ─► their results
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use crate::results::{Results, junit, libtest};

/// The seconds after which a test in Python has failed.
const TIMEOUT_S: &str = "300";

/// Tests that one program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// The Rust tests of the workspace, by nextest. Without nextest by cargo, which runs the documentation examples too.
    Rust,
    /// The Rust tests that are marked `#[ignore]`, one at a time.
    Ignored,
    /// The examples in the documentation of the crates.
    Documentation,
    /// The tests below a folder that belong to a suite of `tests/suites.py`, so many files at a time.
    Python { folder: &'static str, suite: &'static str, workers: &'static str },
}

/// The program that runs a suite here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runner {
    Nextest,
    Cargo,
    /// `cargo test` for the documentation examples alone.
    CargoDoc,
    /// pytest with the tests below this folder.
    Pytest(&'static str),
}

impl Suite {
    /// The program that runs this suite. `None` if another suite has run its tests.
    pub fn runner(self, has_nextest: bool) -> Option<Runner> {
        match self {
            Suite::Rust | Suite::Ignored if has_nextest => Some(Runner::Nextest),
            Suite::Rust | Suite::Ignored => Some(Runner::Cargo),
            Suite::Documentation => has_nextest.then_some(Runner::CargoDoc),
            Suite::Python { folder, .. } => Some(Runner::Pytest(folder)),
        }
    }

    /// The words that choose its tests.
    pub fn words(self, runner: Runner) -> Vec<&'static str> {
        match (self, runner) {
            (Suite::Ignored, Runner::Nextest) => vec!["--run-ignored", "only", "--test-threads", "1"],
            (Suite::Ignored, _) => vec!["--", "--ignored", "--test-threads=1"],
            (Suite::Python { folder, suite, workers }, _) => {
                vec![folder, "--suite", suite, "-n", workers, "--dist", "loadfile"]
            }
            (Suite::Rust | Suite::Documentation, _) => Vec::new(),
        }
    }

    /// The program under test. The gate has one build, and users get the release build.
    pub fn program(self) -> &'static str {
        match self {
            Suite::Python { suite, .. } if suite != "gate" => "target/release/nerite",
            _ => "target/debug/nerite",
        }
    }
}

impl Runner {
    /// The command. The words that choose the tests follow: those of a suite, or [`Runner::only`].
    pub fn command(self, results: &Path) -> Vec<String> {
        let words = match self {
            Runner::Nextest => "cargo nextest run --workspace --locked --profile gate --status-level fail".to_owned(),
            Runner::Cargo => "cargo test --workspace --locked --no-fail-fast".to_owned(),
            Runner::CargoDoc => "cargo test --workspace --doc --locked --no-fail-fast".to_owned(),
            Runner::Pytest(_) => {
                let results = results.display();
                format!(".venv/bin/python -m pytest -o junit_family=xunit1 --junitxml={results} --timeout {TIMEOUT_S}")
            }
        };
        words.split(' ').map(str::to_owned).collect()
    }

    /// The words that choose these tests only.
    pub fn only(self, names: &[&str]) -> Vec<String> {
        match self {
            Runner::Nextest => {
                let one = |name: &&str| match name.rsplit_once(' ') {
                    Some((binary, test)) => format!("binary_id(={binary}) & test(={test})"),
                    None => format!("test(={name})"),
                };
                let tests = names.iter().map(one).collect::<Vec<_>>().join(" | ");
                ["--run-ignored", "all", "-E", &tests].map(str::to_owned).into()
            }
            Runner::Cargo | Runner::CargoDoc => {
                ["--", "--include-ignored", "--exact"].iter().chain(names).map(|word| (*word).to_owned()).collect()
            }
            Runner::Pytest(_) => names.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    /// What a person types to run one test alone.
    pub fn alone(self, name: &str) -> String {
        match self {
            Runner::Nextest => format!("cargo nextest run --workspace {}", quoted(&self.only(&[name]))),
            Runner::Cargo => format!("cargo test --workspace {}", quoted(&self.only(&[name]))),
            Runner::CargoDoc => format!("cargo test --workspace --doc {}", quoted(&self.only(&[name]))),
            Runner::Pytest(_) => format!(".venv/bin/python -m pytest {}", quoted(&self.only(&[name]))),
        }
    }

    /// The file with the results of a run, below the root. `None` if the results are in the output.
    pub fn results_file(self, root: &Path) -> Option<PathBuf> {
        match self {
            Runner::Nextest => Some(root.join("target/nextest/gate/results.xml")),
            Runner::Cargo | Runner::CargoDoc => None,
            Runner::Pytest(folder) => Some(root.join("target").join(format!("{}.xml", folder.replace('/', "-")))),
        }
    }

    /// The results of a run that printed this output.
    pub fn read(self, root: &Path, output: &str) -> Result<Results, String> {
        let Some(file) = self.results_file(root) else { return Ok(libtest::read(output)) };
        let text = fs::read_to_string(&file).map_err(|cause| format!("no results in {}: {cause}", file.display()))?;
        junit::read(&text, if let Runner::Pytest(folder) = self { Some(folder) } else { None })
    }
}

/// The words as a shell takes them.
fn quoted(words: &[String]) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,".contains(letter);
    let one = |word: &String| {
        if word.chars().all(plain) { word.clone() } else { format!("'{}'", word.replace('\'', "'\\''")) }
    };
    words.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(runner: Runner, name: &str, expect: &str) {
        assert_eq!(runner.alone(name), expect);
    }

    #[test]
    fn each_runner_has_a_command_for_one_test_alone() {
        check(
            Runner::Nextest,
            "nerite-shm::faults a::b",
            "cargo nextest run --workspace --run-ignored all -E 'binary_id(=nerite-shm::faults) & test(=a::b)'",
        );
        check(Runner::Cargo, "a::b", "cargo test --workspace -- --include-ignored --exact a::b");
        check(
            Runner::CargoDoc,
            "a.rs - b (line 1)",
            "cargo test --workspace --doc -- --include-ignored --exact 'a.rs - b (line 1)'",
        );
        check(
            Runner::Pytest("tests"),
            "tests/gpu/test_cuda.py::test_it[it's]",
            r".venv/bin/python -m pytest 'tests/gpu/test_cuda.py::test_it[it'\''s]'",
        );
    }

    #[test]
    fn a_second_trial_runs_the_failed_tests_only() {
        let runner = Runner::Pytest("tests");
        let words = [runner.command(Path::new("r.xml")), runner.only(&["tests/a.py::b"])].concat();
        let expect = ".venv/bin/python -m pytest -o junit_family=xunit1 --junitxml=r.xml --timeout 300 tests/a.py::b";
        assert_eq!(words.join(" "), expect);
    }
}
