//! Does a test call each function that the server exports?
//!
//! The functions are those that `crates/cabi` exports for Triton's interface. The tests that call them are programs and backends in C and C++.

use std::collections::HashSet;

use super::Finding;
use super::tree::Tree;

/// Where the functions are defined: each on a line that begins with its name in quotes.
const DEFINITIONS: &str = "crates/cabi/src/calls/";
/// Where the programs and backends of the tests are.
const TESTS: &str = "tests/";
/// How the names begin.
const PREFIXES: [&str; 2] = ["TRITONSERVER_", "TRITONBACKEND_"];

/// A finding for each function that no test calls.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let programs =
        [".c", ".cc"].into_iter().flat_map(|end| tree.ending(end)).filter(|(path, _)| path.starts_with(TESTS));
    let called: HashSet<&str> = programs.flat_map(|(_, text)| calls(text)).collect();
    let definitions = tree.sources().filter(|(path, _)| path.starts_with(DEFINITIONS));
    let mut findings = Vec::new();
    for (path, text) in definitions {
        for (index, line) in text.lines().enumerate() {
            let Some(name) = defined_name(line) else { continue };
            if !called.contains(name) {
                let why = format!("`{name}` is exported, and no program or backend in {TESTS} calls it");
                findings.push(Finding::new("interface", path, index + 1, why));
            }
        }
    }
    findings
}

/// The name of the function that a line begins to define, such as `"TRITONSERVER_ErrorCode" = error_code(…`.
fn defined_name(line: &str) -> Option<&str> {
    let (name, rest) = line.trim_start().strip_prefix('"')?.split_once('"')?;
    (is_of_interface(name) && rest.starts_with(" =")).then_some(name)
}

/// The functions that a text calls, or passes to a macro: their names before a parenthesis or a comma.
fn calls(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split_inclusive(|next: char| !(next.is_ascii_alphanumeric() || next == '_'));
    words.filter_map(|word| word.strip_suffix(['(', ',', ')'])).filter(|word| is_of_interface(word))
}

fn is_of_interface(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUNCTIONS: &str = "//! Why?\nexports! {\n    \"TRITONSERVER_A\" = a(x: u8) {\n    }\n\n    \"TRITONBACKEND_B\" =\n        b() {}\n}\n";

    #[track_caller]
    fn check_tests(program: (&str, &str), expect: &[(&str, usize)]) {
        let findings = check(&Tree::of([("crates/cabi/src/calls/some.rs", FUNCTIONS), program]));
        let found: Vec<(&str, usize)> =
            findings.iter().map(|finding| (finding.text.split('`').nth(1).unwrap_or(""), finding.line)).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn a_function_that_a_program_calls_or_names_to_a_macro_is_tested() {
        check_tests(("tests/programs/some.c", "MUST(TRITONSERVER_A(1)); GOOD(TRITONBACKEND_B, 2);"), &[]);
        check_tests(("tests/backends/some.cc", "TRITONSERVER_A(1); call(TRITONBACKEND_B);"), &[]);
    }

    #[test]
    fn a_function_that_no_program_calls_is_found() {
        check_tests(
            ("tests/a.c", "/* TRITONSERVER_A */ TRITONSERVER_AB(1);"),
            &[("TRITONSERVER_A", 3), ("TRITONBACKEND_B", 6)],
        );
        // A declaration calls nothing, and other folders have no tests.
        check_tests(("tests/a.h", "void TRITONSERVER_A(int);"), &[("TRITONSERVER_A", 3), ("TRITONBACKEND_B", 6)]);
        check_tests(("crates/a.c", "TRITONSERVER_A(1);"), &[("TRITONSERVER_A", 3), ("TRITONBACKEND_B", 6)]);
        check_tests(("tests/a.c", "TRITONSERVER_A(1);"), &[("TRITONBACKEND_B", 6)]);
    }
}
