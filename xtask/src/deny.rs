//! Is the project built only from packages that `deny.toml` allows?
//!
//! cargo-deny checks bans, licences and sources of all packages. Its advisories are downloaded from a database that is in no registry of packages: run `cargo deny
//! check advisories` by hand.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The file of rules.
const POLICY: &str = "deny.toml";

/// The version of cargo-deny. Another version may give other results.
const VERSION: &str = "0.20.2";

/// The directory it is installed in, below the workspace.
const TOOLS: &str = "target/tools";

/// The manifests of the workspaces. Each has its own lock file.
pub const MANIFESTS: [&str; 4] =
    ["Cargo.toml", crate::tensorflow::MANIFEST, "fuzz/Cargo.toml", "tests/interleavings/Cargo.toml"];

/// Checks the packages of all workspaces.
pub fn run(root: &Path) -> Result<(), String> {
    let program = find(root)?;
    for manifest in MANIFESTS {
        println!("-- {manifest}");
        let mut command = Command::new(&program);
        command.current_dir(root).args(words(manifest));
        succeed(&mut command, manifest)?;
    }
    Ok(())
}

fn words(manifest: &str) -> Vec<&str> {
    let look = ["--locked", "--offline", "--log-level=error", "--config", POLICY, "--manifest-path", manifest];
    [&look[..], &["check", "bans", "licenses", "sources"]].concat()
}

/// The program in the right version: found on the path, installed earlier, or installed now, which takes two minutes.
fn find(root: &Path) -> Result<PathBuf, String> {
    let ours = root.join(TOOLS).join("bin/cargo-deny");
    if let Some(found) = [PathBuf::from("cargo-deny"), ours.clone()].into_iter().find(|program| is_right(program)) {
        return Ok(found);
    }
    println!("-- cargo-deny {VERSION} is installed to {TOOLS}");
    let mut install = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // A debug build: it runs for three seconds only, and is built faster.
    install.args(["install", "--quiet", "--locked", "--debug", "--force", "--root", TOOLS, "--version", VERSION]);
    // A separate build directory, so that nothing of the project has to be rebuilt afterwards.
    install.arg("cargo-deny").current_dir(root).env("CARGO_TARGET_DIR", root.join(TOOLS).join("build"));
    succeed(&mut install, "cargo install cargo-deny")?;
    Ok(ours)
}

fn is_right(program: &Path) -> bool {
    let output = Command::new(program).arg("--version").output();
    output.is_ok_and(|output| is_version(&String::from_utf8_lossy(&output.stdout)))
}

/// Whether this is the version text of the right version.
fn is_version(said: &str) -> bool {
    said.trim().strip_prefix("cargo-deny ") == Some(VERSION)
}

fn succeed(command: &mut Command, about: &str) -> Result<(), String> {
    let status = command.status().map_err(|cause| format!("{about}: {cause}"))?;
    if status.success() { Ok(()) } else { Err(format!("{about}: {status}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_workspace_is_checked_by_one_policy_and_without_the_network() {
        for manifest in MANIFESTS {
            assert!(crate::root().join(manifest).is_file(), "{manifest}");
            let words = words(manifest).join(" ");
            assert!(words.contains("--locked --offline") && words.contains("--config deny.toml"), "{words}");
            assert!(words.ends_with(&format!("--manifest-path {manifest} check bans licenses sources")), "{words}");
        }
    }

    #[test]
    fn only_the_pinned_version_is_accepted() {
        assert!(is_version(&format!("cargo-deny {VERSION}\n")));
        assert!(!is_version("cargo-deny 0.14.2\n"));
        assert!(!is_version(""));
    }
}
