//! How are the tests run that an interpreter of unsafe code can follow?
//!
//! Miri finds reads of memory that is not there, not initialised, or another's, and races, in the code it can interpret: what
//! asks the system for memory (`mmap`, `shm_open`, signals) it cannot. Tests of such code are left out with `cfg(miri)` or run
//! on memory of the heap in its place.

use std::path::Path;
use std::process::Command;

/// Packages, and which of their tests: what of them asks the system for no memory that Miri cannot give. The registry runs
/// its conformance suite on the heap; a text of the C library differs there.
const TESTS: [(&str, &[&str]); 4] = [
    // Miri itself ends where there is no memory.
    ("nerite-memory", &["--skip=more_than_there_is", "--skip=heap::tests"]),
    ("nerite-tensor", &[]),
    ("nerite-guard", &["table"]),
    (
        "nerite-shm",
        &[
            "conformance::heap_backed",
            "conformance::both_kinds",
            "lease::census",
            "lease::class",
            "lease::name",
            "lease::free_list",
            "tally",
            "window",
            "--skip=registrations_stop_at_the_limits",
        ],
    ),
];

const NEEDS: &str =
    "Miri is no part of the pinned toolchain: `rustup toolchain install nightly --component miri,rust-src`, then again";

/// Runs them.
pub fn run(root: &Path) -> Result<(), String> {
    let mut version = cargo(root);
    let found = version.args(["miri", "--version"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        return Err(NEEDS.to_owned());
    }
    for (package, tests) in TESTS {
        println!("-- {package}");
        let mut command = cargo(root);
        command.args(["miri", "test", "--locked", "-p", package, "--lib", "--"]).args(tests);
        // Each step is a thousand times as long.
        command.env("PROPTEST_CASES", "8");
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
