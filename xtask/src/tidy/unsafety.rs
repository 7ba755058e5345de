//! Is unsafe code only in the crates that may have it?

use super::Finding;
use super::tree::Tree;

/// Crates that may hold unsafe code.
const UNSAFE_CRATES: [&str; 10] =
    ["backend-sdk", "cabi", "cpp-heap", "cuda", "guard", "inprocess", "memory", "onnx", "ort", "shm"];

const FORBID: &str = "#![forbid(unsafe_code)]";

/// Searches for the word itself, so it is also found in macros and in code that is not compiled here.
pub fn check(path: &str, skeleton: &str) -> Vec<Finding> {
    if may_be_unsafe(path) {
        return Vec::new();
    }
    let words =
        |line: &str| line.split(|next: char| !next.is_alphanumeric() && next != '_').any(|word| word == "unsafe");
    let lines = skeleton.lines().enumerate().filter(|(_, line)| words(line));
    let text = "unsafe code lives in the crates named for it alone";
    lines.map(|(index, _)| Finding::new("unsafe", path, index + 1, text)).collect()
}

/// Checks the root files of libraries and programs. Integration tests are not checked.
pub fn check_roots(tree: &Tree) -> Vec<Finding> {
    let is_root =
        |path: &str| path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs") || path.contains("/src/bin/");
    let roots = tree.sources().filter(|(path, _)| is_root(path) && !may_be_unsafe(path));
    let lacking = roots.filter(|(_, text)| !text.lines().any(|line| line.trim() == FORBID));
    lacking.map(|(path, _)| Finding::new("forbid-unsafe", path, 0, format!("the crate must say {FORBID}"))).collect()
}

fn may_be_unsafe(path: &str) -> bool {
    let mut parts = path.split('/');
    parts.next() == Some("crates") && parts.next().is_some_and(|name| UNSAFE_CRATES.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_lines(path: &str, skeleton: &str, expect: &[usize]) {
        let lines: Vec<usize> = check(path, skeleton).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, expect);
    }

    #[test]
    fn unsafe_is_found_outside_its_crates() {
        check_lines("crates/api/src/a.rs", "fn a() {\n    unsafe { b() }\n}", &[2]);
        check_lines("crates/shm/src/a.rs", "unsafe { b() }", &[]);
        check_lines("xtask/src/a.rs", "unsafe { b() }", &[1]);
        check_lines("crates/api/src/a.rs", "#![forbid(unsafe_code)] fn unsafe_looking() {}", &[]);
    }

    #[test]
    fn every_other_crate_forbids_it() {
        let tree = Tree::of([
            ("crates/api/src/lib.rs", "//! Why?\n#![forbid(unsafe_code)]\n"),
            ("crates/http/src/lib.rs", "//! Why?\n"),
            ("crates/server/src/bin/nerite.rs", "//! Why?\n"),
            ("crates/memory/src/lib.rs", "//! Why?\n"),
        ]);
        let paths: Vec<String> = check_roots(&tree).into_iter().map(|finding| finding.path).collect();
        assert_eq!(paths, ["crates/http/src/lib.rs", "crates/server/src/bin/nerite.rs"]);
    }
}
