//! Does anything have a name that was retired?

use super::Finding;
use super::tree::Tree;

/// The retired names. Each line is `name: what to say instead`.
pub const FILE: &str = "xtask/retired.txt";

/// Looks for retired names in `skeleton`, and for a retired name of the file itself.
pub fn check(tree: &Tree, path: &str, skeleton: &str) -> Vec<Finding> {
    let retired = tree.text(FILE).map(retired).unwrap_or_default();
    let file = path.rsplit('/').next().unwrap_or(path);
    let mut findings = Vec::new();
    for (name, instead) in &retired {
        let text = || format!("'{name}' is retired: {instead}");
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
fn retired(list: &str) -> Vec<(&str, &str)> {
    list.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(": ")).collect()
}

fn has_word(line: &str, word: &str) -> bool {
    let is_part = |next: Option<char>| next.is_some_and(|next| next.is_alphanumeric() || next == '_');
    line.match_indices(word)
        .any(|(at, _)| !is_part(line[..at].chars().next_back()) && !is_part(line[at + word.len()..].chars().next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# comment: x\nOld: `New`\ngone: `New`\nold.rs: `New`\n";

    #[track_caller]
    fn check_lines(path: &str, source: &str, lines: &[usize]) {
        let tree = Tree::of([(FILE, LIST)]);
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
