//! How are the tests of unsafe code run that Miri can interpret?
//!
//! Miri finds reads of memory that is unmapped, uninitialised or freed, and data races. It cannot interpret code that asks the system for memory
//! (`mmap`, `shm_open`, signals). Tests of such code are left out with `cfg(miri)`, or use heap memory instead.

use std::path::Path;
use std::process::Command;

/// The toolchain that has Miri. Another day's may warn of other things, so `tests/setup_all.sh` installs this one.
const TOOLCHAIN: &str = "nightly-2026-10-30";

/// Packages, and their tests that need no memory from the system that Miri cannot provide. The registry runs its conformance suite on the heap, where
/// one error text of the C library differs.
const TESTS: [(&str, &[&str]); 5] = [
    // Miri aborts if there is no memory. Under it, large allocations are not mapped, and nothing is passed on to the thread that unmaps.
    (
        "nerite-memory",
        &["--skip=more_than_there_is", "--skip=heap::tests", "--skip=large::tests", "--skip=unmapping::tests"],
    ),
    ("nerite-tensor", &[]),
    ("nerite-guard", &["table"]),
    // The rest of this crate calls libraries, which Miri cannot interpret.
    ("nerite-cabi", &["table"]),
    (
        "nerite-shm",
        &[
            "conformance::heap_backed",
            "conformance::both_kinds",
            "lease::size_counts",
            "lease::class",
            "lease::name",
            "lease::free_list",
            "mapped_counts",
            "window",
            "--skip=registrations_stop_at_the_limits",
        ],
    ),
];

/// Runs them. [`missing`] says first whether Miri is here.
pub fn run(root: &Path) -> Result<(), String> {
    for (package, tests) in TESTS {
        println!("-- {package}");
        let mut command = cargo(root);
        command.args(["miri", "test", "--locked", "-p", package, "--lib", "--"]).args(tests);
        // Miri runs each step about a thousand times slower.
        command.env("PROPTEST_CASES", "8");
        // Tests may use the real clock, environment and files, and addresses that were converted to integers (the guard's table).
        command.env("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-permissive-provenance");
        let status = command.status().map_err(|cause| format!("{package}: {cause}"))?;
        if !status.success() {
            return Err(format!("{package}: {status}"));
        }
    }
    Ok(())
}

/// What is not here, and where it comes from.
pub fn missing(root: &Path) -> Option<String> {
    let is_installed = cargo(root).args(["miri", "--version"]).output().is_ok_and(|output| output.status.success());
    (!is_installed).then(|| {
        format!(
            "Miri is no part of the pinned toolchain: `rustup toolchain install {TOOLCHAIN} --profile minimal --component miri,rust-src` brings it"
        )
    })
}

/// The nightly cargo. It is found by rustup, because the path of this cargo is that of the pinned toolchain.
fn cargo(root: &Path) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", TOOLCHAIN, "cargo"]).current_dir(root);
    // Child processes would use the pinned toolchain with these variables.
    for name in ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTC", "RUSTDOC"] {
        command.env_remove(name);
    }
    command
}
