//! Which exceptions from the rules are allowed, and why?

use super::Finding;

/// The file of exceptions. Each line is `rule path: reason`.
pub const FILE: &str = "xtask/tidy.allow";

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowance {
    rule: String,
    path: String,
    line: usize,
}

/// Reads the exceptions. Each must have a reason.
pub fn parse(text: &str) -> Result<Vec<Allowance>, String> {
    let mut allowed = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let parts = line.split_once(' ').and_then(|(rule, rest)| Some((rule, rest.split_once(": ")?)));
        let Some((rule, (path, reason))) = parts else {
            return Err(format!("{FILE}:{line_number}: expected 'rule path: reason', got '{line}'"));
        };
        if reason.trim().is_empty() {
            return Err(format!("{FILE}:{line_number}: an exception needs its reason"));
        }
        allowed.push(Allowance { rule: rule.to_owned(), path: path.trim().to_owned(), line: line_number });
    }
    Ok(allowed)
}

/// Removes the findings that are allowed, and adds a finding for each exception that is not needed any more.
pub fn apply(findings: Vec<Finding>, allowed: &[Allowance]) -> Vec<Finding> {
    let mut used = vec![false; allowed.len()];
    let mut left = Vec::new();
    for finding in findings {
        let fits = |one: &Allowance| one.rule == finding.rule && one.path == finding.path;
        match allowed.iter().position(fits) {
            Some(index) => used[index] = true,
            None => left.push(finding),
        }
    }
    let unused = allowed.iter().zip(used).filter(|(_, used)| !used);
    left.extend(unused.map(|(one, _)| {
        Finding::new("allow", FILE, one.line, format!("nothing needs '{} {}' any more", one.rule, one.path))
    }));
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Result<usize, &str>) {
        let found = parse(text).map(|allowed| allowed.len());
        assert_eq!(found, expect.map_err(str::to_owned));
    }

    #[test]
    fn an_exception_has_a_rule_a_path_and_a_reason() {
        check("", Ok(0));
        check("# words\n\nfile-length a.rs: it is a table\n", Ok(1));
        check("file-length a.rs", Err("xtask/tidy.allow:1: expected 'rule path: reason', got 'file-length a.rs'"));
        check("x: y", Err("xtask/tidy.allow:1: expected 'rule path: reason', got 'x: y'"));
        check("\nrule a.rs:  ", Err("xtask/tidy.allow:2: expected 'rule path: reason', got 'rule a.rs:'"));
    }

    #[test]
    fn one_line_allows_all_findings_of_its_rule_in_its_file() {
        let findings = |lines: [usize; 2]| lines.map(|line| Finding::new("r", "a.rs", line, "")).to_vec();
        let allowed = parse("r a.rs: a test").expect("a good line");
        assert_eq!(apply(findings([1, 9]), &allowed), []);
        let other = parse("other a.rs: a test").expect("a good line");
        assert_eq!(apply(findings([1, 9]), &other).len(), 3);
    }
}
