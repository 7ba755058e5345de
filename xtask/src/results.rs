//! What came out of a run of tests?

pub mod junit;
pub mod libtest;

/// The results of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Results {
    pub passed: usize,
    pub failed: Vec<Failure>,
    pub skipped: Vec<Skip>,
}

/// A test that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The name as its runner takes it.
    pub name: String,
    /// One line.
    pub reason: String,
}

/// A test that did not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    pub name: String,
    pub reason: String,
}

/// The first line of a text that says what is wrong: the message of a panic, or else the first line that is not empty.
pub fn reason_in(text: &str) -> String {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.clone().next().unwrap_or("no reason was given");
    let line = match lines.find(|line| line.starts_with("thread '") && line.contains("panicked at")) {
        Some(place) => match lines.next() {
            Some(message) => {
                let place = place.split_once("panicked at").map_or("", |(_, place)| place.trim().trim_end_matches(':'));
                return format!("{message} ({place})");
            }
            None => place,
        },
        None => first,
    };
    line.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &str) {
        assert_eq!(reason_in(text), expect);
    }

    #[test]
    fn a_panic_is_the_reason_and_else_the_first_line() {
        check("", "no reason was given");
        check("\n  exit code 1\nmore", "exit code 1");
        let panic = "running\nthread 'a::b' (7) panicked at src/a.rs:1:2:\nassertion failed: x\nnote: run";
        check(panic, "assertion failed: x (src/a.rs:1:2)");
        check("thread 'a' panicked at src/a.rs:1:2:", "thread 'a' panicked at src/a.rs:1:2:");
    }
}
