//! Does every relative link in the documentation lead to a file, and every anchor to a heading?
//!
//! Links to other hosts are not looked at, so the rule needs no network.

use std::collections::BTreeMap;

use super::Finding;
use super::tree::{Tree, is_page};

/// Looks at the links of all pages.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.pages() {
        for (line, target) in links(text) {
            if let Some(fault) = fault(tree, path, target) {
                findings.push(Finding::new("links", path, line, fault));
            }
        }
    }
    findings
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
    // Only pages have headings: `#L10` of a source is the forge's affair.
    let text = tree.text(&path).filter(|_| is_page(&path))?;
    let known = headings(text).contains(&anchor.to_owned());
    (!known).then(|| format!("`{path}` has no heading `#{anchor}`"))
}

/// The path from the top of the workspace that a link of a page names; `None` if that is above it.
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

/// The lines of a page that are text and no code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
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
            // Inside of backquotes it is code.
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
    fn links_to_what_is_there_are_fine() {
        check_links("[b](b.md) [up](../README.md) [c](../crates/x/src/lib.rs#L3) [d](../crates/x/)", &[]);
        check_links("# Here\n[here](#here) [x](b.md#why---x) [y](b.md#twice-1) [`z`](b.md#a-title)", &[]);
        check_links("[far](https://example.com/a.md) [mail](mailto:a@example.com)\n[b]: b.md\n", &[]);
    }

    #[test]
    fn links_to_what_is_not_there_are_found() {
        check_links("[c](c.md)", &["`c.md` leads to `docs/c.md`, which is not there"]);
        check_links("[c]: ../c.md", &["`../c.md` leads to `c.md`, which is not there"]);
        check_links("[out](../../c.md)", &["`../../c.md` leads out of the repository"]);
        check_links("[x](b.md#y) [z](#z)", &["`docs/b.md` has no heading `#y`", "`docs/a.md` has no heading `#z`"]);
        check_links("[x](b.md#no-heading)", &["`docs/b.md` has no heading `#no-heading`"]);
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
