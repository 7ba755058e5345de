//! Does the source follow the house style?
//!
//! The rules of the house style that a program can check. Each rule is a function from text to findings. Exceptions are lines of `xtask/tidy.allow`,
//! each with its reason.

mod allow;
mod cycles;
mod files;
mod functions;
mod glossary;
mod interface;
mod layers;
mod links;
mod locks;
mod pages;
mod profiles;
mod readmes;
mod skeleton;
mod tree;
mod unsafety;
mod waits;

use std::path::Path;

use self::allow::Allowance;
use self::tree::Tree;

/// A place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule's name, as `tidy.allow` writes it.
    pub rule: &'static str,
    /// The file, relative to the root of the workspace.
    pub path: String,
    /// The line, from 1. 0 means the whole file.
    pub line: usize,
    /// What is wrong, and what the rule is.
    pub text: String,
    /// Whether it is only a warning.
    pub warning: bool,
}

impl Finding {
    /// An error.
    fn new(rule: &'static str, path: &str, line: usize, text: impl Into<String>) -> Finding {
        Finding { rule, path: path.to_owned(), line, text: text.into(), warning: false }
    }
}

/// Prints the findings below `root`. Err if any of them is an error.
pub fn run(root: &Path) -> Result<(), String> {
    let mut errors = 0;
    for finding in look(root)? {
        let kind = if finding.warning { "warning" } else { "error" };
        let line = if finding.line == 0 { String::new() } else { format!(":{}", finding.line) };
        println!("{}{line}: {kind}: {} [{}]", finding.path, finding.text, finding.rule);
        errors += usize::from(!finding.warning);
    }
    match errors {
        0 => Ok(()),
        1 => Err("1 place is not tidy".to_owned()),
        _ => Err(format!("{errors} places are not tidy")),
    }
}

/// All findings below `root` that are not allowed as exceptions.
fn look(root: &Path) -> Result<Vec<Finding>, String> {
    let tree = Tree::read(root)?;
    let allowed = match tree.text(allow::FILE) {
        Some(text) => allow::parse(text)?,
        None => Vec::new(),
    };
    Ok(judge(&tree, &allowed))
}

fn judge(tree: &Tree, allowed: &[Allowance]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.sources() {
        let skeleton = skeleton::of(text);
        findings.extend(files::check(path, text));
        findings.extend(functions::check(path, &skeleton));
        findings.extend(unsafety::check(path, &skeleton));
        findings.extend(glossary::check(tree, path, &skeleton));
    }
    for (path, text) in tree.python_sources() {
        findings.extend(glossary::check(tree, path, &skeleton::python::of(text)));
    }
    findings.extend(unsafety::check_roots(tree));
    findings.extend(layers::check(tree));
    findings.extend(cycles::check(tree));
    findings.extend(interface::check(tree));
    findings.extend(profiles::check(tree));
    findings.extend(readmes::check(tree));
    findings.extend(links::check(tree));
    findings.extend(pages::check(tree));
    findings.extend(locks::check(tree));
    findings.extend(waits::check(tree));
    allow::apply(findings, allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_tidy() {
        let findings = look(crate::root()).expect("the workspace can be read");
        let errors: Vec<String> = findings
            .iter()
            .filter(|finding| !finding.warning)
            .map(|finding| format!("{}:{} {} [{}]", finding.path, finding.line, finding.text, finding.rule))
            .collect();
        assert!(errors.is_empty(), "{}", errors.join("\n"));
    }

    #[test]
    fn the_glossary_holds_for_python_too() {
        let tree =
            Tree::of([(glossary::FILE, "Old: New\n"), ("python/a.py", "# `Old` and Old\nx = Old('Old')\ny = 'Old'\n")]);
        let findings = judge(&tree, &[]).into_iter().filter(|finding| finding.rule == "glossary");
        assert_eq!(
            findings.map(|finding| (finding.path, finding.line)).collect::<Vec<_>>(),
            [("python/a.py".to_owned(), 1), ("python/a.py".to_owned(), 2)]
        );
    }

    #[test]
    fn an_allowed_finding_is_silent_and_an_unused_allowance_is_not() {
        let tree = Tree::of([("crates/a/src/mod.rs", "//! Why?\n")]);
        let allowed = allow::parse("file-name crates/a/src/mod.rs: a test\nquestion crates/gone.rs: a test\n");
        let findings = judge(&tree, &allowed.expect("two good lines"));
        let rules: Vec<&str> = findings.iter().map(|finding| finding.rule).collect();
        assert_eq!(rules, ["allow"]);
    }
}
