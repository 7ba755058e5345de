//! Is arithmetic checked in every build that is shipped or measured?
//!
//! A sum over sizes from the wire that wraps becomes a wrong address. Builds for release check it in the project's own crates;
//! crates of the registry, for which `*` stands, keep their default.

use super::Finding;
use super::tree::{MANIFEST, Tree};

/// Crates of the project for which the checks were measured to cost too much. There is none.
const MEASURED: [&str; 0] = [];

/// Looks at the profiles.
pub fn check(tree: &Tree) -> Vec<Finding> {
    tree.text(MANIFEST).map(check_text).unwrap_or_default()
}

fn check_text(text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (mut section, mut is_checked) = (String::new(), false);
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']).replace(['"', '\''], "");
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        if key.trim() != "overflow-checks" {
            continue;
        }
        let is_on = value.trim() == "true";
        is_checked |= is_on && section == "profile.release";
        if !is_on && !may_be_off(&section) {
            let what = format!(
                "[{section}] switches overflow-checks off; measure what they cost, and name the crate in MEASURED"
            );
            findings.push(Finding::new("overflow-checks", MANIFEST, index + 1, what));
        }
    }
    if !is_checked {
        findings.push(Finding::new(
            "overflow-checks",
            MANIFEST,
            0,
            "[profile.release] must say overflow-checks = true",
        ));
    }
    findings
}

/// Whether this part of the profiles is of crates that are not the project's, or were measured.
fn may_be_off(section: &str) -> bool {
    let package = section.rsplit_once(".package.").map(|(_, package)| package);
    package.is_some_and(|package| package == "*" || MEASURED.contains(&package))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_lines(text: &str, lines: &[usize]) {
        let found: Vec<usize> = check_text(text).iter().map(|finding| finding.line).collect();
        assert_eq!(found, lines, "{text}");
    }

    #[test]
    fn a_release_checks_sums_in_the_projects_crates() {
        let on = "[profile.release]\noverflow-checks = true # why\n";
        check_lines(on, &[]);
        check_lines(&format!("{on}[profile.release.package.\"*\"]\noverflow-checks = false\n"), &[]);
        check_lines(&format!("{on}[profile.release.package.nerite-wire]\noverflow-checks = false\n"), &[4]);
        check_lines(&format!("{on}[profile.bench]\noverflow-checks = false\n"), &[4]);
    }

    #[test]
    fn a_release_that_says_nothing_is_found() {
        check_lines("", &[0]);
        check_lines("[profile.dev]\noverflow-checks = true\n", &[0]);
        check_lines("[profile.release]\n# overflow-checks = true\n", &[0]);
        check_lines("[profile.release]\noverflow-checks = false\n", &[2, 0]);
    }
}
