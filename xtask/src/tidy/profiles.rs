//! Is arithmetic checked in every build that is shipped or measured?
//!
//! If a sum of sizes from the wire wraps, it becomes a wrong address. Release builds check overflow in the project's own crates. Crates of the
//! registry, which `*` stands for, keep their default.

use super::Finding;
use super::tree::{MANIFEST, Tree};

/// Crates of the project without the checks, because measurements showed that they cost too much. There are none.
const MEASURED: [&str; 0] = [];

/// Checks the profiles.
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

/// Whether the checks may be off in this section: it is for crates of others, or for measured ones.
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
    fn a_release_profile_without_the_setting_is_found() {
        check_lines("", &[0]);
        check_lines("[profile.dev]\noverflow-checks = true\n", &[0]);
        check_lines("[profile.release]\n# overflow-checks = true\n", &[0]);
        check_lines("[profile.release]\noverflow-checks = false\n", &[2, 0]);
    }
}
