//! Is every flag of `nerite serve` documented?

use super::Finding;
use super::tree::Tree;

/// The documentation of the flags.
pub const DOCS: &str = "docs/flags.md";

/// The table by which the program parses its command line.
const TABLE: &str = "crates/server/src/flags/table.rs";

/// Compares page and table, if both exist: each flag of the table must be on the page as `--name` in backquotes, and each row of the page that begins
/// with a flag must be in the table.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let (Some(docs), Some(table)) = (tree.text(DOCS), tree.text(TABLE)) else { return Vec::new() };
    let flags = table_flags(table);
    if flags.is_empty() {
        return vec![Finding::new(
            "flags",
            TABLE,
            0,
            "no flags found; tidy reads lines such as `\"id\" TEXT, …` in `flags! {`",
        )];
    }
    let documented: Vec<&str> = docs.split('`').skip(1).step_by(2).filter_map(flag_of).collect();
    let missing = flags.iter().filter(|(flag, _)| !documented.contains(flag));
    let mut findings: Vec<Finding> = missing
        .map(|(flag, line)| Finding::new("flags", TABLE, *line, format!("`--{flag}` is not in {DOCS}")))
        .collect();
    for (index, line) in docs.lines().enumerate() {
        let Some(flag) = line.strip_prefix("| `").and_then(flag_of) else { continue };
        if !flags.iter().any(|(known, _)| *known == flag) {
            findings.push(Finding::new("flags", DOCS, index + 1, format!("there is no flag `--{flag}`")));
        }
    }
    findings
}

/// The flag at the beginning of a text, without its dashes.
fn flag_of(text: &str) -> Option<&str> {
    let text = text.strip_prefix("--")?;
    let end = text.find(|next: char| !is_flag_char(next)).unwrap_or(text.len());
    (end > 0).then(|| &text[..end])
}

fn is_flag_char(next: char) -> bool {
    next.is_ascii_lowercase() || next.is_ascii_digit() || next == '-'
}

/// The flags of the table with their lines: a name in quotes at the start of a line, then the type of its value.
fn table_flags(table: &str) -> Vec<(&str, usize)> {
    let from = table.lines().position(|line| line.trim_start().starts_with("flags! {"));
    let Some(from) = from else { return Vec::new() };
    let mut flags = Vec::new();
    for (index, line) in table.lines().enumerate().skip(from + 1) {
        let named = line.trim_start().strip_prefix('"').and_then(|rest| rest.split_once('"'));
        if let Some((name, rest)) = named
            && rest.starts_with(' ')
            && name.chars().all(is_flag_char)
        {
            flags.push((name, index + 1));
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: &str = "//! Why?\nflags! {\n    \"General\": {\n        \"id\" TEXT, Yes, \"Name\";\n        \
                         \"http-port\" INT, Yes, \"Port\";\n    }\n}\n";

    #[track_caller]
    fn check_docs(docs: &str, expect: &[&str]) {
        let findings = check(&Tree::of([(DOCS, docs), (TABLE, FLAGS)]));
        let texts: Vec<&str> = findings.iter().map(|finding| finding.text.as_str()).collect();
        assert_eq!(texts, expect);
    }

    #[test]
    fn page_and_table_agree() {
        check_docs("| `--id` | name |\n| `--http-port <n>` | port |\n", &[]);
        check_docs("`--id=x` and `--http-port`", &[]);
    }

    #[test]
    fn a_flag_missing_on_either_side_is_found() {
        check_docs("| `--http-port` | |\n", &["`--id` is not in docs/flags.md"]);
        check_docs(
            "| `--id` | |\n| `--http-ports` | |\n",
            &["`--http-port` is not in docs/flags.md", "there is no flag `--http-ports`"],
        );
    }

    #[test]
    fn without_the_page_there_are_no_findings() {
        assert_eq!(check(&Tree::of([(TABLE, FLAGS)])), []);
        assert_eq!(check(&Tree::of([(DOCS, "`--id`")])), []);
        assert_eq!(check(&Tree::of([(DOCS, ""), (TABLE, "//! Why?")])).len(), 1);
    }
}
