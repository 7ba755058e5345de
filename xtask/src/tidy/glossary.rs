//! Does anything have a name that the glossary has retired?

use super::Finding;
use super::tree::Tree;

/// The glossary. The table below its last heading lists retired names in backquotes, in the first column.
pub const DOCS: &str = "docs/glossary.md";
const HEADING: &str = "## Retired words";

/// Looks for retired names in `skeleton`, and for a retired name of the file itself.
pub fn check(tree: &Tree, path: &str, skeleton: &str) -> Vec<Finding> {
    let retired = tree.text(DOCS).map(retired).unwrap_or_default();
    let file = path.rsplit('/').next().unwrap_or(path);
    let mut findings = Vec::new();
    for (name, instead) in &retired {
        let text = || format!("the glossary retired '{name}': {instead}");
        if file == *name {
            findings.push(Finding::new("glossary", path, 0, text()));
        }
        // Most files have none of them. Their lines need not be looked at one by one.
        if !skeleton.contains(name) {
            continue;
        }
        let lines = skeleton.lines().enumerate().filter(|(_, line)| has_word(line, name));
        findings.extend(lines.map(|(index, _)| Finding::new("glossary", path, index + 1, text())));
    }
    findings
}

/// The retired names, each with its replacement.
fn retired(page: &str) -> Vec<(&str, &str)> {
    let Some((_, table)) = page.split_once(HEADING) else { return Vec::new() };
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| row.split_once('|'));
    cells
        .flat_map(|(names, instead)| {
            names.split('`').step_by(2).map(move |name| (name, instead.trim_matches([' ', '|'])))
        })
        .collect()
}

fn has_word(line: &str, word: &str) -> bool {
    let is_part = |next: Option<char>| next.is_some_and(|next| next.is_alphanumeric() || next == '_');
    line.match_indices(word)
        .any(|(at, _)| !is_part(line[..at].chars().next_back()) && !is_part(line[at + word.len()..].chars().next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "| `Kept` | a word |\n## Retired words\n\n| retired | instead |\n|---|---|\n| `Old`, `gone`, `old.rs` | `New` |\n";

    #[track_caller]
    fn check_lines(path: &str, source: &str, lines: &[usize]) {
        let tree = Tree::of([(DOCS, PAGE)]);
        let found = check(&tree, path, source);
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), lines, "{found:?}");
    }

    #[test]
    fn a_retired_name_is_found_as_a_whole_word() {
        check_lines("crates/a/src/b.rs", "struct Old;\nstruct Older;\nfn of(_: &Old) {}\n", &[1, 3]);
        check_lines("crates/a/src/b.rs", "struct Kept;\nstruct MyOld;\n", &[]);
    }

    #[test]
    fn a_retired_name_in_small_letters_is_found_in_fields_functions_and_variables() {
        check_lines(
            "crates/a/src/b.rs",
            "struct A {\n    gone: u8,\n}\nfn gone() {\n    let gone = 1;\n}\n",
            &[2, 4, 5],
        );
        check_lines("crates/a/src/b.rs", "fn all_gone(is_gone: bool) {}\nstruct Gone;\n", &[]);
    }

    #[test]
    fn a_retired_name_of_a_file_is_found() {
        check_lines("crates/a/src/old.rs", "", &[0]);
        check_lines("crates/a/src/cold.rs", "", &[]);
    }
}
