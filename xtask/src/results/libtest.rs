//! Which tests failed, according to the text that `cargo test` prints?
//!
//! Ignored tests do not count: they belong to another suite.

use super::{Failure, Results, reason_in};

/// Reads the output of all test programs. Tests print between these lines, so only the lists at the end of each program and
/// its counts are read.
pub fn read(output: &str) -> Results {
    let mut results = Results::default();
    for program in output.split_inclusive("\ntest result: ") {
        results
            .failed
            .extend(names(program).map(|name| Failure { name: name.to_owned(), reason: reason(program, name) }));
    }
    for line in output.lines().filter_map(|line| line.strip_prefix("test result: ")) {
        results.passed += passed(line);
    }
    results
}

/// The names in the last list of failures.
fn names(program: &str) -> impl Iterator<Item = &str> {
    let list = program.rsplit_once("\nfailures:\n").map_or("", |(_, list)| list);
    list.lines().map_while(|line| line.strip_prefix("    ")).filter(|name| !name.is_empty())
}

fn reason(program: &str, name: &str) -> String {
    let heading = format!("---- {name} stdout ----\n");
    let text = program.split_once(&heading).map_or("", |(_, text)| text);
    reason_in(text.split_once("\n---- ").map_or(text, |(text, _)| text))
}

/// The number before the word `passed`, as in `ok. 4 passed; 1 failed`.
fn passed(line: &str) -> usize {
    let before = line.split_once(" passed").map_or("", |(before, _)| before);
    before.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_names_and_reasons_and_all_programs_are_counted() {
        let output = "\
running 3 tests
test a ... ok
test b::c ... FAILED
test d ... ignored

failures:

---- b::c stdout ----

thread 'b::c' (9) panicked at src/b.rs:4:5:
it is wrong
note: run with `RUST_BACKTRACE=1`


failures:
    b::c

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

running 2 tests
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";
        let results = read(output);
        assert_eq!((results.passed, results.skipped.len()), (3, 0));
        let failed = Failure { name: "b::c".to_owned(), reason: "it is wrong (src/b.rs:4:5)".to_owned() };
        assert_eq!(results.failed, [failed]);
    }

    #[test]
    fn an_output_without_tests_has_no_results() {
        assert_eq!(read("error: could not compile"), Results::default());
    }
}
