//! Are the locks of the crates that serve requests counted?
//!
//! A request may pass through every crate below `crates/`, except those that are listed here.

use super::Finding;
use super::tree::Tree;

const COUNTED: [&str; 2] = ["Mutex", "RwLock"];
/// The counted locks themselves, what runs in other programs, and what runs only when models are loaded and processes started.
const SERVES_NONE: [&str; 6] = ["locks", "client", "bench", "backend-sdk", "repository", "sandbox"];

/// Finds locks of the standard library, which are not counted.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let served = |path: &str| {
        let Some((name, file)) = path.strip_prefix("crates/").and_then(|rest| rest.split_once('/')) else {
            return false;
        };
        file.starts_with("src/")
            && !SERVES_NONE.contains(&name)
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
    fn check_source(path: &str, source: &str, is_good: bool) {
        assert_eq!(check(&Tree::of([(path, source)])).is_empty(), is_good, "{path}: {source}");
    }

    #[test]
    fn a_crate_that_serves_requests_counts_all_its_locks() {
        const SERVES: &str = "crates/x/src/a.rs";
        check_source(SERVES, "//! A?\nuse std::sync::{Arc, Mutex};\n", false);
        check_source(SERVES, "//! A?\nuse std::sync::RwLock;\n", false);
        check_source(SERVES, "//! A?\nuse std::sync::{Arc, MutexGuard};\nuse nerite_locks::Mutex;\n", true);
        check_source(SERVES, "//! A?\nmod tests {\n    use std::sync::Mutex;\n}\n", true);
        for other in ["crates/x/src/a/tests.rs", "crates/x/benches/a.rs", "crates/sandbox/src/a.rs", "xtask/src/a.rs"] {
            check_source(other, "//! A?\nuse std::sync::Mutex;\n", true);
        }
    }
}
