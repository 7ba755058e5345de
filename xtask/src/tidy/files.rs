//! Does each file begin with a question, have a good name, and few lines?

use super::Finding;

/// The most lines of a file.
const LINES_MAX: usize = 600;
/// Files with more lines get a warning.
const LINES_WARN: usize = 400;

const _: () = assert!(LINES_WARN < LINES_MAX);

/// Names that do not describe the contents.
const EMPTY_NAMES: [&str; 13] = [
    "common",
    "data",
    "helper",
    "helpers",
    "info",
    "manager",
    "managers",
    "misc",
    "mod",
    "shared",
    "util",
    "utils",
    "utilities",
];

/// Checks one source file.
pub fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let first = text.lines().next().unwrap_or_default();
    if !is_question(first) {
        let text = format!("the first line must be the question the file answers, `//! …?`, and is `{first}`");
        findings.push(Finding::new("question", path, 1, text));
    }
    let lines = text.lines().count();
    if lines > LINES_WARN {
        let text = format!("{lines} lines; files have less than {LINES_WARN}, and {LINES_MAX} at most");
        let warning = lines <= LINES_MAX;
        findings.push(Finding { warning, ..Finding::new("file-length", path, 0, text) });
    }
    let stem = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".rs");
    if EMPTY_NAMES.contains(&stem) {
        let text =
            format!("`{stem}` says nothing; name the file after what is in it (`foo.rs` beside `foo/`, no `mod.rs`)");
        findings.push(Finding::new("file-name", path, 0, text));
    }
    findings
}

fn is_question(line: &str) -> bool {
    line.strip_prefix("//! ").is_some_and(|text| text.len() > 1 && text.ends_with('?'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_rules(path: &str, text: &str, expect: &[&str]) {
        let findings = check(path, text);
        let rules: Vec<&str> = findings.iter().map(|finding| finding.rule).collect();
        assert_eq!(rules, expect, "{findings:?}");
    }

    #[test]
    fn the_first_line_is_a_question() {
        check_rules("a.rs", "//! Why?\n", &[]);
        for text in ["", "//! Because.\n", "// Why?\n", "//!\n", "//! ?\n", "\n//! Why?\n", "//! Why? So.\n"] {
            check_rules("a.rs", text, &["question"]);
        }
    }

    #[test]
    fn a_file_is_short() {
        let lines = |count: usize| format!("//! Why?\n{}", "\n".repeat(count - 1));
        check_rules("a.rs", &lines(400), &[]);
        check_rules("a.rs", &lines(401), &["file-length"]);
        assert!(check("a.rs", &lines(600))[0].warning);
        assert!(!check("a.rs", &lines(601))[0].warning);
    }

    #[test]
    fn a_name_says_something() {
        for name in ["crates/a/src/mod.rs", "crates/a/src/utils.rs", "x/common.rs", "info.rs"] {
            check_rules(name, "//! Why?\n", &["file-name"]);
        }
        check_rules("crates/common/src/datatype.rs", "//! Why?\n", &[]);
    }
}
