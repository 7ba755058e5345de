//! Does a test wait for a time where it could wait for an event?
//!
//! Two things are counted in the code of tests: pauses of a fixed length, and waits that give up too soon for a busy machine. `xtask/waits.allow` has
//! the counts of each file, and a line is lowered with its file. A deadline that is itself what a test is about does not count: its line has a
//! comment with the words of [`EXEMPT`].

use std::collections::BTreeMap;
use std::path::Path;

use super::Finding;
use super::skeleton;
use super::tree::Tree;

/// The file of counts. Each line is `path pauses waits`.
pub const FILE: &str = "xtask/waits.allow";
/// The shortest wait for an event that a busy machine does not break.
const WAIT_S_MIN: f64 = 30.0;
const EXEMPT: &str = "the deadline is the subject";
/// What stands before the length of a wait.
const WAITS: [&str; 6] = ["timeout(", "timeout=", ".wait(", ".join(", "monotonic() + ", "now() + "];
/// What stands before a number of seconds, and how many seconds one is.
const UNITS: [(&str, f64); 4] = [
    ("Duration::from_secs(", 1.0),
    ("Duration::from_millis(", 0.001),
    ("Duration::from_micros(", 0.000_001),
    ("", 1.0),
];

/// Pauses and short waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    pauses: usize,
    waits: usize,
}

/// Compares the counts of all tests with the file.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let allowed = parse(tree.text(FILE).unwrap_or_default());
    let mut findings = Vec::new();
    for (path, text) in tree.sources().chain(tree.python_sources()) {
        let counts = test_code(path, text).map(|code| count(path, code)).unwrap_or_default();
        let may = allowed.get(path).copied().unwrap_or_default();
        if counts.pauses > may.pauses || counts.waits > may.waits {
            let text = format!(
                "{} pauses and {} waits below {WAIT_S_MIN} s, {} and {} are allowed: wait for an event, for {WAIT_S_MIN} s at least",
                counts.pauses, counts.waits, may.pauses, may.waits
            );
            findings.push(Finding::new("waits", path, 0, text));
        } else if counts != may {
            let text = format!("lower the line: {path} {} {}", counts.pauses, counts.waits);
            findings.push(Finding::new("waits", FILE, 0, text));
        }
    }
    let gone = allowed.keys().filter(|path| !tree.is_there(path));
    findings.extend(gone.map(|path| Finding::new("waits", FILE, 0, format!("there is no {path}"))));
    findings
}

fn parse(text: &str) -> BTreeMap<&str, Counts> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let parsed = lines.filter_map(|line| {
        let mut words = line.split(' ');
        let (path, pauses, waits) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some((path, Counts { pauses, waits }))
    });
    parsed.collect()
}

/// The part of a file that is code of tests.
fn test_code<'a>(path: &str, text: &'a str) -> Option<&'a str> {
    let is_model = path.starts_with("tests/models/");
    let is_whole = path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/tests.rs");
    if is_whole {
        return (!is_model).then_some(text);
    }
    text.split_once("\n#[cfg(test)]\nmod ").map(|(_, tests)| tests)
}

fn count(path: &str, code: &str) -> Counts {
    let bare = if Path::new(path).extension().is_some_and(|end| end == "py") {
        skeleton::python::of(code)
    } else {
        skeleton::of(code)
    };
    let lines = bare.lines().zip(code.lines()).filter(|(_, line)| !line.contains(EXEMPT));
    let mut counts = Counts::default();
    for (line, _) in lines {
        counts.pauses += lengths(line, "sleep(").count();
        counts.waits += WAITS.iter().flat_map(|before| lengths(line, before)).filter(|s| *s < WAIT_S_MIN).count();
    }
    counts
}

/// The numbers that stand behind these words, in seconds.
fn lengths<'a>(line: &'a str, before: &'a str) -> impl Iterator<Item = f64> + 'a {
    line.match_indices(before).filter_map(move |(at, _)| {
        let rest = &line[at + before.len()..];
        let (rest, unit) = UNITS.iter().find_map(|(words, unit)| Some((rest.strip_prefix(words)?, unit)))?;
        let end = rest.find(|letter: char| !letter.is_ascii_digit() && !"._".contains(letter)).unwrap_or(rest.len());
        rest[..end].replace('_', "").parse::<f64>().ok().map(|length| length * unit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_count(path: &str, code: &str, pauses: usize, waits: usize) {
        assert_eq!(count(path, code), Counts { pauses, waits }, "{code}");
    }

    #[test]
    fn pauses_and_short_waits_are_counted() {
        check_count("a.py", "time.sleep(0.5)\n", 1, 0);
        check_count("a.py", "time.sleep(PAUSE_S)\nx = 'sleep(5)'  # sleep(5)\n", 0, 0);
        check_count("a.py", "event.wait(5)\nrun(timeout=60)\nevent.wait(timeout=2.5)\n", 0, 2);
        check_count("a.py", "until = time.monotonic() + 10\n", 0, 1);
        check_count("a.py", "call(timeout=1)  # the deadline is the subject\n", 0, 0);
        check_count("a.rs", "sleep(Duration::from_millis(5)); rx.recv_timeout(Duration::from_secs(10))", 1, 1);
        check_count("a.rs", "rx.recv_timeout(Duration::from_secs(60)); let s = \"sleep(1)\";", 0, 0);
    }

    #[test]
    fn code_of_tests_is_told_from_other_code() {
        assert_eq!(test_code("tests/hostile/test_a.py", "x"), Some("x"));
        assert_eq!(test_code("python/tests/test_a.py", "x"), Some("x"));
        assert_eq!(test_code("crates/a/src/b/tests.rs", "x"), Some("x"));
        assert_eq!(test_code("tests/models/python_models/a.py", "x"), None);
        assert_eq!(test_code("crates/a/src/b.rs", "x"), None);
        assert_eq!(test_code("crates/a/src/b.rs", "x\n#[cfg(test)]\nmod tests {}"), Some("tests {}"));
    }

    #[test]
    fn the_file_of_counts_is_exact() {
        let rules = |allowed: &str| {
            let tree = Tree::of([("tests/test_a.py", "time.sleep(1)\ntime.sleep(2)\n"), (FILE, allowed)]);
            check(&tree).into_iter().map(|finding| finding.path).collect::<Vec<_>>()
        };
        assert_eq!(rules("# a comment\ntests/test_a.py 2 0\n"), Vec::<String>::new());
        assert_eq!(rules("tests/test_a.py 1 0\n"), ["tests/test_a.py"]);
        assert_eq!(rules("tests/test_a.py 3 0\n"), [FILE]);
        assert_eq!(rules("tests/test_a.py 2 0\ntests/test_b.py 1 1\n"), [FILE]);
    }
}
