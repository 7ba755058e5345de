//! Is every page short enough to be read?
//!
//! A cell of a table has at most [`CELL_WORDS_MAX`] words. A page of `docs/` has at most [`PAGE_WORDS_MAX`] words, unless it is generated or most
//! of its words stand in tables. All hand-written pages of `docs/` together have at most [`DOCS_WORDS_MAX`] words. `xtask/pages.allow` has the
//! pages with more, and a line is lowered with its page.

use std::collections::BTreeMap;

use super::Finding;
use super::links::prose;
use super::tree::Tree;

/// The file of exceptions. Each line is `path words cells`: the words of the page, rounded up to hundreds, or 0, and the number of its long cells.
pub const FILE: &str = "xtask/pages.allow";
/// Pages outside of `docs/` that are read from end to end.
const OTHERS: [&str; 4] = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md"];
/// The most words of a cell.
const CELL_WORDS_MAX: usize = 25;
/// The most words of a cell that is an exception.
const LONG_CELL_WORDS_MAX: usize = 40;
/// The most words of a page.
const PAGE_WORDS_MAX: usize = 1_500;
/// The most words of all hand-written pages of `docs/`.
const DOCS_WORDS_MAX: usize = 55_000;
/// What a generated page has near its beginning.
const GENERATED: &str = "<!-- Written by ";
const STEP: usize = 100;

/// What is too long in a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Excess {
    words: usize,
    cells: usize,
}

/// Compares all pages with the limits and the file of exceptions.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let allowed = parse(tree.text(FILE).unwrap_or_default());
    let mut findings = Vec::new();
    for (path, text) in tree.pages().filter(|(path, _)| path.starts_with("docs/") || OTHERS.contains(path)) {
        let may = allowed.get(path).copied().unwrap_or_default();
        let cells: Vec<(usize, usize)> = cells(text).filter(|(_, words)| *words > CELL_WORDS_MAX).collect();
        let too_long = if may.cells > 0 { LONG_CELL_WORDS_MAX } else { CELL_WORDS_MAX };
        for (line, words) in cells.iter().filter(|(_, words)| *words > too_long) {
            findings.push(Finding::new("pages", path, *line, format!("a cell of {words} words, {too_long} at most")));
        }
        let excess = Excess { words: excess_words(path, text), cells: cells.len() };
        if excess.words > may.words.max(PAGE_WORDS_MAX) {
            let most = may.words.max(PAGE_WORDS_MAX);
            findings.push(Finding::new("pages", path, 0, format!("{} words, {most} at most: split it", excess.words)));
        } else if may.cells > 0 && excess.cells > may.cells {
            let text = format!("{} cells of more than {CELL_WORDS_MAX} words, {} are allowed", excess.cells, may.cells);
            findings.push(Finding::new("pages", path, 0, text));
        } else if allowed.contains_key(path) && excess.rounded() != may {
            let Excess { words, cells } = excess.rounded();
            findings.push(Finding::new("pages", FILE, 0, format!("lower the line: {path} {words} {cells}")));
        }
    }
    let gone = allowed.keys().filter(|path| !tree.is_there(path));
    findings.extend(gone.map(|path| Finding::new("pages", FILE, 0, format!("there is no {path}"))));
    let words: usize =
        tree.pages().filter(|(path, text)| is_hand_written(path, text)).map(|(_, text)| words(text)).sum();
    if words > DOCS_WORDS_MAX {
        let text = format!("{words} hand-written words, {DOCS_WORDS_MAX} at most");
        findings.push(Finding::new("pages", "docs", 0, text));
    }
    findings
}

impl Excess {
    /// As the file of exceptions has it.
    fn rounded(self) -> Excess {
        let words = if self.words > PAGE_WORDS_MAX { self.words.div_ceil(STEP) * STEP } else { 0 };
        Excess { words, cells: self.cells }
    }
}

fn parse(text: &str) -> BTreeMap<&str, Excess> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let parsed = lines.filter_map(|line| {
        let mut parts = line.split(' ');
        let (path, words, cells) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some((path, Excess { words, cells }))
    });
    parsed.collect()
}

/// The words of a page to which the limit applies.
fn excess_words(path: &str, text: &str) -> usize {
    let all = words(text);
    let in_tables: usize = rows(text).map(|(_, row)| words(row)).sum();
    if is_hand_written(path, text) && in_tables * 2 <= all { all } else { 0 }
}

fn is_hand_written(path: &str, text: &str) -> bool {
    let is_generated = text.lines().take(5).any(|line| line.starts_with(GENERATED));
    path.starts_with("docs/") && !path.starts_with("docs/results/") && !is_generated
}

/// The rows of all tables, with their lines.
fn rows(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).filter(|(_, line)| line.starts_with('|'))
}

/// The number of words of each cell, with its line.
fn cells(text: &str) -> impl Iterator<Item = (usize, usize)> {
    rows(text).flat_map(|(number, row)| {
        // `\|` does not end a cell.
        let row = row.replace("\\|", "");
        let counts: Vec<usize> = row.split('|').map(words).collect();
        counts.into_iter().map(move |count| (number, count))
    })
}

fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_page(path: &str, page: &str, allowed: &str, expect: &[&str]) {
        let tree = Tree::of([(path, page), (FILE, allowed)]);
        let texts: Vec<String> = check(&tree).into_iter().map(|finding| finding.text).collect();
        assert_eq!(texts, expect);
    }

    fn row(words: usize) -> String {
        format!("| a \\| {} | b |\n", "x ".repeat(words - 1))
    }

    #[test]
    fn a_long_cell_is_found() {
        check_page("docs/a.md", &row(25), "", &[]);
        check_page("docs/a.md", &row(26), "", &["a cell of 26 words, 25 at most"]);
        check_page("README.md", &row(26), "", &["a cell of 26 words, 25 at most"]);
        check_page("crates/a/README.md", &row(26), "", &[]);
        check_page("docs/a.md", &format!("```\n{}```\n", row(26)), "", &[]);
    }

    #[test]
    fn an_exception_has_its_limits_too() {
        let two = row(26) + &row(40);
        check_page("docs/a.md", &two, "docs/a.md 0 2\n", &[]);
        check_page("docs/a.md", &two, "docs/a.md 0 3\n", &["lower the line: docs/a.md 0 2"]);
        check_page("docs/a.md", &two, "docs/a.md 0 1\n", &["2 cells of more than 25 words, 1 are allowed"]);
        check_page("docs/a.md", &row(41), "docs/a.md 0 1\n", &["a cell of 41 words, 40 at most"]);
        check_page("docs/a.md", "", "docs/b.md 0 1\n", &["there is no docs/b.md"]);
    }

    #[test]
    fn a_long_page_is_found_unless_it_is_generated_or_a_table() {
        let long = "word ".repeat(1_501);
        check_page("docs/a.md", &long, "", &["1501 words, 1500 at most: split it"]);
        check_page("docs/a.md", &long, "docs/a.md 1600 0\n", &[]);
        check_page("docs/a.md", &long, "docs/a.md 1700 0\n", &["lower the line: docs/a.md 1600 0"]);
        check_page("docs/a.md", &"word ".repeat(1_601), "docs/a.md 1600 0\n", &["1601 words, 1600 at most: split it"]);
        check_page("docs/results/a.md", &long, "", &[]);
        check_page("CHANGELOG.md", &long, "", &[]);
        check_page("docs/a.md", &format!("# A\n\n<!-- Written by a script -->\n{long}"), "", &[]);
        check_page("docs/a.md", &row(20).repeat(80), "", &[]);
    }

    #[test]
    fn the_pages_have_a_limit_together() {
        let page = row(20).repeat(2_600);
        check_page("docs/a.md", &page, "", &["65000 hand-written words, 55000 at most"]);
        check_page("docs/results/a.md", &page, "", &[]);
    }
}
