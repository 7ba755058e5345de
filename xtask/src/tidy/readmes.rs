//! Does each crate have a README that names it and its question, and an example?

use super::Finding;
use super::tree::Tree;

/// Checks the crates below `crates/`. The question is the first line of the crate's root.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let folders = tree.ending("/Cargo.toml").filter_map(|(path, _)| path.strip_suffix("/Cargo.toml"));
    let crates = folders.filter(|folder| is_crate(folder));
    crates.flat_map(|folder| [check_crate(tree, folder), check_example(tree, folder)]).flatten().collect()
}

fn is_crate(folder: &str) -> bool {
    folder.strip_prefix("crates/").is_some_and(|name| !name.contains('/'))
}

fn check_crate(tree: &Tree, folder: &str) -> Option<Finding> {
    let path = format!("{folder}/README.md");
    let name = folder.trim_start_matches("crates/");
    let Some(text) = tree.text(&path) else {
        return Some(Finding::new("readme", &path, 0, "each crate has a README.md of about a dozen lines"));
    };
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let title = format!("# nerite-{name}");
    let (index, line) = lines.next().unwrap_or_default();
    if line != title {
        return Some(Finding::new(
            "readme",
            &path,
            index + 1,
            format!("the first line must be `{title}`, and is `{line}`"),
        ));
    }
    let question = question(tree, folder)?;
    let (index, line) = lines.next().unwrap_or_default();
    let text = || format!("the line below the title must be the crate's question, `{question}`, and is `{line}`");
    (line != question).then(|| Finding::new("readme", &path, index + 1, text()))
}

/// Only libraries have such examples. The tests compile them, except that of a library for C: Cargo has no tests of its documentation.
fn check_example(tree: &Tree, folder: &str) -> Option<Finding> {
    let path = format!("{folder}/src/lib.rs");
    let page = tree.text(&path)?.lines().map_while(|line| line.strip_prefix("//!"));
    let mut fences = page.map(str::trim).filter_map(|line| line.strip_prefix("```")).step_by(2);
    let text = "the first page of a crate has an example, below ``` or ```no_run; the tests compile it, except in a library for C";
    (!fences.any(|kind| kind.is_empty() || kind == "no_run")).then(|| Finding::new("example", &path, 0, text))
}

/// The first line of the crate's root.
fn question<'t>(tree: &'t Tree, folder: &str) -> Option<&'t str> {
    let roots = ["lib.rs", "main.rs"].map(|file| format!("{folder}/src/{file}"));
    let text = roots.iter().find_map(|root| tree.text(root))?;
    text.lines().next()?.strip_prefix("//! ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_readme(readme: Option<&str>, expect: &[&str]) {
        let files = [("crates/a/Cargo.toml", "[package]\n"), ("crates/a/src/lib.rs", "//! Why?\n//! ```\n//! ```\n")];
        let readme = readme.map(|text| ("crates/a/README.md", text));
        let found = check(&Tree::of(files.into_iter().chain(readme)));
        assert_eq!(found.iter().map(|finding| finding.text.as_str()).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn a_readme_names_its_crate_and_its_question() {
        check_readme(Some("# nerite-a\n\nWhy?\n\nMore.\n"), &[]);
        check_readme(None, &["each crate has a README.md of about a dozen lines"]);
        check_readme(Some("# a\n\nWhy?\n"), &["the first line must be `# nerite-a`, and is `# a`"]);
        check_readme(
            Some("# nerite-a\n\nHow?\n"),
            &["the line below the title must be the crate's question, `Why?`, and is `How?`"],
        );
        check_readme(Some(""), &["the first line must be `# nerite-a`, and is ``"]);
    }

    #[track_caller]
    fn check_page(page: &str, has_example: bool) {
        let tree = Tree::of([("crates/a/src/lib.rs", page)]);
        assert_eq!(check_example(&tree, "crates/a").is_none(), has_example, "{page}");
    }

    #[test]
    fn a_first_page_has_an_example() {
        check_page("//! Why?\n//!\n//! ```\n//! assert!(true);\n//! ```\n", true);
        check_page("//! Why?\n//! ```text\n//! a picture\n//! ```\n//! ```no_run\n//! run()\n//! ```\n", true);
        check_page("//! Why?\n", false);
        check_page("//! Why?\n//! ```text\n//! a picture\n//! ```\n", false);
        check_page("//! Why?\nmod a;\n//! ```\n//! ```\n", false);
        assert_eq!(check_example(&Tree::of([("crates/a/src/main.rs", "//! Why?\n")]), "crates/a"), None);
    }

    #[test]
    fn folders_that_are_no_crates_need_none() {
        assert_eq!(check(&Tree::of([("xtask/Cargo.toml", ""), ("crates/a/fuzz/Cargo.toml", "")])), []);
    }
}
