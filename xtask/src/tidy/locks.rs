//! Are the locks of the crates that serve requests counted?

use super::Finding;
use super::tree::Tree;

const COUNTED: [&str; 2] = ["Mutex", "RwLock"];

/// Checks the crates that use `nerite-locks`: a lock of the standard library in one of them would not be counted.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let manifests = tree.ending("/Cargo.toml");
    let users = manifests.filter(|(_, text)| {
        let mut lines = text.lines().take_while(|line| *line != "[dev-dependencies]");
        lines.any(|line| line.starts_with("nerite-locks"))
    });
    let folders: Vec<String> = users.map(|(path, _)| path.replace("Cargo.toml", "src/")).collect();
    let served = |path: &str| {
        folders.iter().any(|folder| path.starts_with(folder))
            && !path.contains("/conformance/")
            && !path.ends_with("tests.rs")
    };
    tree.sources().filter(|(path, _)| served(path)).flat_map(|(path, text)| check_file(path, text)).collect()
}

/// Lines of test modules are indented, so they may use any lock.
fn check_file(path: &str, text: &str) -> Vec<Finding> {
    let imports = text.lines().enumerate().filter(|(_, line)| line.starts_with("use std::sync"));
    let uncounted = imports.filter(|(_, line)| names(line).any(|name| COUNTED.contains(&name)));
    let text = "import it from `nerite_locks`, which counts what a request takes";
    uncounted.map(|(index, _)| Finding::new("locks", path, index + 1, text)).collect()
}

fn names(line: &str) -> impl Iterator<Item = &str> {
    line.split(|letter: char| !letter.is_alphanumeric()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_source(manifest: &str, source: &str, is_good: bool) {
        let tree = Tree::of([("crates/x/Cargo.toml", manifest), ("crates/x/src/a.rs", source)]);
        assert_eq!(check(&tree).is_empty(), is_good, "{source}");
    }

    #[test]
    fn a_crate_that_counts_its_locks_counts_all() {
        const COUNTS: &str = "[dependencies]\nnerite-locks.workspace = true\n";
        check_source(COUNTS, "//! A?\nuse std::sync::{Arc, Mutex};\n", false);
        check_source(COUNTS, "//! A?\nuse std::sync::RwLock;\n", false);
        check_source(COUNTS, "//! A?\nuse std::sync::{Arc, MutexGuard};\nuse nerite_locks::Mutex;\n", true);
        check_source(COUNTS, "//! A?\nmod tests {\n    use std::sync::Mutex;\n}\n", true);
        check_source("[dependencies]\n", "//! A?\nuse std::sync::Mutex;\n", true);
    }
}
