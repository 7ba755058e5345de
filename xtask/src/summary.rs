//! What is said at the end of a task?
//!
//! At most [`LINES_MAX`] lines: the steps with their times, what was skipped, what failed and how it runs alone, and the counts.

use crate::results::{Failure, Results};
use crate::suite::{Runner, Suite};

/// The most lines of a summary. A log is mostly cut to its end, and this much of it is always shown.
const LINES_MAX: usize = 40;
/// The most tests that the gate may skip. The machine's kernel may lack what they need.
const SKIPS_MAX: usize = 10;

/// How much a task may skip, and how long its summary may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limits {
    /// Those of the gate.
    Gate,
    /// No limits, as for a report in a file.
    None,
}

impl Limits {
    fn skips_max(self) -> usize {
        if self == Limits::Gate { SKIPS_MAX } else { usize::MAX }
    }

    fn lines_max(self) -> usize {
        if self == Limits::Gate { LINES_MAX } else { usize::MAX }
    }
}

/// The most characters of a reason.
const REASON_CHARS_MAX: usize = 200;

/// A step that is over.
#[derive(Debug)]
pub struct Done {
    pub about: &'static str,
    pub seconds: u64,
    pub end: End,
}

/// How a step ended.
#[derive(Debug)]
pub enum End {
    Passed,
    Failed(String),
    NotRun(String),
    /// What the step needs is not to be had here, such as a toolchain. That is no failure.
    Unavailable(String),
    Tests(Tests),
}

/// The tests of a step.
#[derive(Debug)]
pub struct Tests {
    pub suite: Suite,
    pub runner: Runner,
    pub results: Results,
    /// What is wrong apart from failed tests.
    pub error: Option<String>,
    /// The tests that failed, and passed when they ran alone.
    pub flaky: Vec<Failure>,
}

impl Tests {
    /// Moves the tests that passed the second time to the flaky ones.
    pub fn note_second_trial(&mut self, again: &Results) {
        // What did not run again is not known to be good.
        if again.passed + again.failed.len() != self.results.failed.len() {
            return;
        }
        let failed = std::mem::take(&mut self.results.failed);
        let is_bad = |failure: &Failure| again.failed.iter().any(|second| second.name == failure.name);
        (self.results.failed, self.flaky) = failed.into_iter().partition(is_bad);
        self.results.passed += self.flaky.len();
    }
}

impl Done {
    /// Whether this is the step of this name, and steps that need it may run.
    pub fn is_ready(&self, about: &str) -> bool {
        self.about == about && matches!(self.end, End::Passed)
    }

    pub fn tests(&self) -> Option<&Tests> {
        if let End::Tests(tests) = &self.end { Some(tests) } else { None }
    }

    pub fn tests_mut(&mut self) -> Option<&mut Tests> {
        if let End::Tests(tests) = &mut self.end { Some(tests) } else { None }
    }

    /// What failed here, as a name, the reason and how to run it alone.
    fn failures(&self) -> Vec<[String; 3]> {
        let step = |reason: &str| [format!("step '{}'", self.about), reason.to_owned(), String::new()];
        match &self.end {
            End::Passed | End::Unavailable(_) => Vec::new(),
            End::Failed(reason) => vec![step(reason)],
            End::NotRun(reason) => vec![step(&format!("not run: {reason}"))],
            End::Tests(tests) => {
                let one = |failure: &Failure| {
                    [failure.name.clone(), failure.reason.clone(), tests.runner.alone(&failure.name)]
                };
                let error = tests.error.as_deref().map(step);
                error.into_iter().chain(tests.results.failed.iter().map(one)).collect()
            }
        }
    }
}

/// Whether nothing failed and no more was skipped than may be.
pub fn is_good(done: &[Done], limits: Limits) -> bool {
    done.iter().all(|one| one.failures().is_empty()) && skips(done) <= limits.skips_max()
}

fn skips(done: &[Done]) -> usize {
    done.iter().filter_map(Done::tests).map(|tests| tests.results.skipped.len()).sum()
}

/// The summary. Its last line has the counts.
pub fn lines(done: &[Done], limits: Limits) -> Vec<String> {
    let total: u64 = done.iter().map(|one| one.seconds).sum();
    let mut lines = vec![format!("== {total} s in all")];
    lines.extend(done.iter().map(|one| format!("{:>6} s  {}", one.seconds, one.about)));
    for one in done {
        if let End::Unavailable(reason) = &one.end {
            lines.push(format!("not run: '{}': {}", one.about, cut(reason)));
        }
    }
    lines.extend(skipped(done, limits));
    for tests in done.iter().filter_map(Done::tests) {
        lines.extend(tests.flaky.iter().map(|failure| format!("FLAKY {}: {}", failure.name, cut(&failure.reason))));
    }
    let failures: Vec<[String; 3]> = done.iter().flat_map(Done::failures).collect();
    // Three lines each, and one line that says how many are not shown.
    let shown = failures.len().min(limits.lines_max().saturating_sub(lines.len() + 2) / 3);
    for [name, reason, alone] in &failures[..shown] {
        lines.push(format!("FAILED {name}"));
        lines.push(format!("    {}", cut(reason)));
        lines.extend((!alone.is_empty()).then(|| format!("    {alone}")));
    }
    if failures.len() > shown {
        lines.push(format!("FAILED and not shown here: {}", failures.len() - shown));
    }
    let passed: usize = done.iter().filter_map(Done::tests).map(|tests| tests.results.passed).sum();
    lines.push(format!("{passed} passed, {} failed, {} skipped", failures.len(), skips(done)));
    lines
}

/// One line for each reason.
fn skipped(done: &[Done], limits: Limits) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for skip in done.iter().filter_map(Done::tests).flat_map(|tests| &tests.results.skipped) {
        match reasons.iter_mut().find(|(reason, _)| *reason == skip.reason) {
            Some((_, names)) => names.push(&skip.name),
            None => reasons.push((&skip.reason, vec![&skip.name])),
        }
    }
    let line = |(reason, names): &(&str, Vec<&str>)| format!("skipped {} ({}): {}", names.len(), cut(reason), names[0]);
    let mut lines: Vec<String> = reasons.iter().take(limits.skips_max()).map(line).collect();
    if skips(done) > limits.skips_max() {
        lines.push(format!("FAILED {} tests were skipped, and at most {SKIPS_MAX} may be", skips(done)));
    }
    lines
}

fn cut(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let end = line.char_indices().nth(REASON_CHARS_MAX).map_or(line.len(), |(at, _)| at);
    line[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Skip;

    fn failure(name: &str) -> Failure {
        Failure { name: name.to_owned(), reason: format!("{name} is wrong") }
    }

    fn tests(failed: &[&str], skipped: usize) -> Done {
        let skip = |number| Skip { name: format!("s{number}"), reason: "no kernel".to_owned() };
        let results = Results {
            passed: 7,
            failed: failed.iter().map(|name| failure(name)).collect(),
            skipped: (0..skipped).map(skip).collect(),
        };
        let runner = Runner::Pytest("tests");
        let tests = Tests { suite: Suite::Rust, runner, results, error: None, flaky: Vec::new() };
        Done { about: "tests", seconds: 5, end: End::Tests(tests) }
    }

    fn step(end: End) -> Done {
        Done { about: "lints", seconds: 2, end }
    }

    #[test]
    fn failures_are_named_with_their_reason_and_command() {
        let done = [step(End::Failed("exit status 1: error".to_owned())), tests(&["a"], 1)];
        let expect = "== 7 s in all\n     2 s  lints\n     5 s  tests\nskipped 1 (no kernel): s0\nFAILED step 'lints'\n    \
                      exit status 1: error\nFAILED a\n    a is wrong\n    .venv/bin/python -m pytest a\n7 passed, 2 failed, 1 skipped";
        assert_eq!(lines(&done, Limits::Gate).join("\n"), expect);
        assert!(!is_good(&done, Limits::Gate));
        assert!(is_good(&[step(End::Passed), tests(&[], SKIPS_MAX)], Limits::Gate));
        assert!(!is_good(&[step(End::NotRun(String::new()))], Limits::None));
        let unavailable = [step(End::Unavailable("no toolchain".to_owned()))];
        assert!(is_good(&unavailable, Limits::None));
        assert_eq!(lines(&unavailable, Limits::None)[2], "not run: 'lints': no toolchain");
        let skipped = [tests(&[], SKIPS_MAX + 1)];
        assert!(!is_good(&skipped, Limits::Gate) && is_good(&skipped, Limits::None));
    }

    #[test]
    fn a_summary_has_a_bounded_number_of_lines() {
        let names: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let lines = lines(&[tests(&names, 100)], Limits::Gate);
        assert!(lines.len() <= LINES_MAX && lines.len() > LINES_MAX - 4, "{}", lines.len());
        assert_eq!(lines.last().map(String::as_str), Some("7 passed, 100 failed, 100 skipped"));
    }

    #[track_caller]
    fn check_again(passed: usize, failed: &[&str], expect: [&[&str]; 2]) {
        let mut done = tests(&["a", "b"], 0);
        let again = Results { passed, failed: failed.iter().map(|name| failure(name)).collect(), skipped: Vec::new() };
        let tests = done.tests_mut().expect("tests");
        tests.note_second_trial(&again);
        let names = |failures: &[Failure]| failures.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
        assert_eq!([names(&tests.results.failed), names(&tests.flaky)], expect.map(<[&str]>::to_vec));
    }

    #[test]
    fn a_test_that_passes_alone_is_flaky_and_no_failure() {
        check_again(1, &["b"], [&["b"], &["a"]]);
        check_again(2, &[], [&[], &["a", "b"]]);
        check_again(0, &["a", "b"], [&["a", "b"], &[]]);
        // One of them did not run.
        check_again(1, &[], [&["a", "b"], &[]]);
    }
}
