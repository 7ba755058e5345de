//! Does every relative link in the documentation lead to a file, every anchor to a heading, and is every file there that a page of `docs/` names?
//!
//! Links to other hosts are not checked, so the rule needs no network.

use std::collections::BTreeMap;

use super::Finding;
use super::tree::{Tree, is_page};

/// Checks the links of all pages.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.pages() {
        for (line, target) in links(text) {
            if let Some(fault) = fault(tree, path, target) {
                findings.push(Finding::new("links", path, line, fault));
            }
        }
        for (line, named) in named_files(path, text) {
            if !tree.is_there(named) {
                findings.push(Finding::new("links", path, line, format!("`{named}` is not there")));
            }
        }
    }
    findings
}

/// The paths in backquotes that begin with `crates/` or `tests/`, with their lines: in pages of `docs/`, because other pages name files that a
/// reader is to make. Paths with a pattern in them are not looked up.
fn named_files<'a>(page: &str, text: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let lines = page.starts_with("docs/").then(|| prose(text)).into_iter().flatten();
    lines.flat_map(|(number, line)| {
        let spans = line.split('`').skip(1).step_by(2);
        let words = spans.flat_map(str::split_whitespace);
        let paths = words.filter(|word| word.starts_with("crates/") || word.starts_with("tests/"));
        let paths = paths.filter(|path| !path.contains(['*', '<', '{'])).map(|path| path.trim_end_matches('/'));
        paths.map(move |path| (number, path.split_once("::").map_or(path, |(file, _)| file)))
    })
}

/// What is wrong with a link of the page at `page`.
fn fault(tree: &Tree, page: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let Some(path) = resolve(page, file) else {
        return Some(format!("`{target}` leads out of the repository"));
    };
    if !tree.is_there(&path) {
        return Some(format!("`{target}` leads to `{path}`, which is not there"));
    }
    let anchor = anchor?;
    // Only pages have headings. `#L10` of a source file belongs to the forge.
    let text = tree.text(&path).filter(|_| is_page(&path))?;
    let known = headings(text).contains(&anchor.to_owned());
    (!known).then(|| format!("`{path}` has no heading `#{anchor}`"))
}

/// The path of a link's target, relative to the root of the workspace. `None` if it is outside.
fn resolve(page: &str, file: &str) -> Option<String> {
    if file.is_empty() {
        return Some(page.to_owned());
    }
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in file.trim_end_matches('/').split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The lines of a page outside code blocks, with their numbers.
pub(super) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((index + 1, line))
    })
}

/// The targets of all links, with their lines: `[text](target)` and `[name]: target`.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let defined = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        if let Some((_, target)) = defined {
            found.push((number, target.trim()));
            continue;
        }
        for (at, _) in line.match_indices("](") {
            // Inside backquotes it is code.
            if line[..at].matches('`').count() % 2 == 1 && line[at..].contains('`') && !closes(&line[..at]) {
                continue;
            }
            let Some((target, _)) = line[at + 2..].split_once(')') else { continue };
            found.extend(target.split_whitespace().next().map(|target| (number, target)));
        }
    }
    found
}

/// Whether the text ends with a code span that is the whole text of a link, as in ``[`a`](b)``.
fn closes(before: &str) -> bool {
    before.ends_with('`')
}

/// The anchors of a page's headings, as forges and mdbook make them.
fn headings(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (_, line) in prose(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let anchor = anchor(title.trim());
        let before = seen.entry(anchor.clone()).or_default();
        anchors.push(if *before == 0 { anchor } else { format!("{anchor}-{before}") });
        *before += 1;
    }
    anchors
}

/// Lower case, without punctuation, hyphens for spaces.
fn anchor(title: &str) -> String {
    let mut anchor = String::new();
    let mut is_target = false;
    for next in title.replace("](", "\u{0}").chars() {
        match next {
            '\u{0}' => is_target = true,
            ')' if is_target => is_target = false,
            _ if is_target => {}
            ' ' => anchor.push('-'),
            next if next.is_alphanumeric() || next == '-' || next == '_' => anchor.extend(next.to_lowercase()),
            _ => {}
        }
    }
    anchor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_links(page: &str, expect: &[&str]) {
        let other = "# A title\n\n## Why `--x`?\n\n## Twice\n## Twice\n```\n# no heading\n```\n";
        let tree =
            Tree::of([("docs/a.md", page), ("docs/b.md", other), ("README.md", ""), ("crates/x/src/lib.rs", "")]);
        let texts: Vec<String> = check(&tree).into_iter().map(|finding| finding.text).collect();
        assert_eq!(texts, expect);
    }

    #[test]
    fn links_to_existing_files_are_accepted() {
        check_links("[b](b.md) [up](../README.md) [c](../crates/x/src/lib.rs#L3) [d](../crates/x/)", &[]);
        check_links("# Here\n[here](#here) [x](b.md#why---x) [y](b.md#twice-1) [`z`](b.md#a-title)", &[]);
        check_links("[far](https://example.com/a.md) [mail](mailto:a@example.com)\n[b]: b.md\n", &[]);
    }

    #[test]
    fn links_to_missing_files_are_found() {
        check_links("[c](c.md)", &["`c.md` leads to `docs/c.md`, which is not there"]);
        check_links("[c]: ../c.md", &["`../c.md` leads to `c.md`, which is not there"]);
        check_links("[out](../../c.md)", &["`../../c.md` leads out of the repository"]);
        check_links("[x](b.md#y) [z](#z)", &["`docs/b.md` has no heading `#y`", "`docs/a.md` has no heading `#z`"]);
        check_links("[x](b.md#no-heading)", &["`docs/b.md` has no heading `#no-heading`"]);
    }

    #[test]
    fn files_that_a_page_names_are_there() {
        check_links("`crates/x/src/lib.rs`, `pytest tests/a.py -k b`, `crates/*/a.rs`", &["`tests/a.py` is not there"]);
        check_links("`crates/x/src/`, `crates/x/src/lib.rs::tests`, crates/y `a/crates/y`", &[]);
        check_links("`crates/x/gone.rs`", &["`crates/x/gone.rs` is not there"]);
        check_links("```\n`crates/x/gone.rs`\n```", &[]);
    }

    #[test]
    fn code_has_no_links() {
        check_links("```\n[c](c.md)\n```\n`a[i](c.md)` is code", &[]);
    }

    #[test]
    fn anchors_are_made_as_on_forges() {
        assert_eq!(anchor("[0.1.0] - 2026-11-23"), "010---2026-11-23");
        assert_eq!(anchor("A [link](b.md) and `code`"), "a-link-and-code");
    }
}
