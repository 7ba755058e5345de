//! How are the tests run that an interpreter of unsafe code can follow?
//!
//! Miri finds reads of memory that is not there, not initialised, or another's, and races, in the code it can interpret: what
//! asks the system for memory (`mmap`, `shm_open`, signals) it cannot. Tests of such code are left out with `cfg(miri)` or run
//! on memory of the heap in its place.

use std::path::Path;
use std::process::Command;

/// Crates with unsafe code, or the pure heart of such, and the tests that can be followed.
const CRATES: [(&str, &str); 3] = [("nerite-memory", ""), ("nerite-tensor", ""), ("nerite-shm", "")];

const NEEDS: &str =
    "Miri is no part of the pinned toolchain: `rustup toolchain install nightly --component miri,rust-src`, then again";

/// Runs them.
pub fn run(root: &Path) -> Result<(), String> {
    let mut version = cargo(root);
    let found = version.args(["miri", "--version"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        return Err(NEEDS.to_owned());
    }
    for (package, filter) in CRATES {
        println!("-- {package}");
        let mut command = cargo(root);
        command.args(["miri", "test", "--locked", "-p", package, "--lib"]).args(Some(filter).filter(|f| !f.is_empty()));
        // The real clock, environment and files are fine for tests; addresses that were made integers (the guard's table) too.
        command.env("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-permissive-provenance");
        let status = command.status().map_err(|cause| format!("{package}: {cause}"))?;
        if !status.success() {
            return Err(format!("{package}: {status}"));
        }
    }
    Ok(())
}

/// The nightly cargo. By rustup and not by this cargo's path, which is the pinned toolchain's own.
fn cargo(root: &Path) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]).current_dir(root);
    // They name the pinned toolchain to whatever this one starts.
    for name in ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTC", "RUSTDOC"] {
        command.env_remove(name);
    }
    command
}
