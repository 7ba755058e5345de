//! How is the server for aarch64 tried on a machine of another kind?
//!
//! An emulator runs it. A script starts both, so that tests use it as any other program:
//!
//! ```text
//! cargo xtask aarch64 emulated
//! NERITE_BIN=$PWD/target/emulated/nerite .venv/bin/python -m pytest tests/conformance/test_shm.py
//! ```
//!
//! With `QEMU_PAGESIZE=65536` the program sees pages of 64 KiB. System calls are those of the kernel here. So this does not show what the kernel of
//! another machine does.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::aarch64;
use crate::compile::Machine;

/// The script, which has the name of the program.
const SCRIPT: &str = "target/emulated/nerite";

/// Compiles the server and writes the script.
pub fn run(root: &Path) -> Result<(), String> {
    if let Some(missing) = aarch64::missing(root) {
        return Err(missing);
    }
    let runner = Machine::Aarch64.runner()?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--locked", "-p", "nerite-server", "--target", aarch64::TARGET]).current_dir(root);
    // Without any optimisation the emulated server is too slow for some tests.
    cargo.env(aarch64::LINKER, aarch64::COMPILER).env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
    let status = cargo.status().map_err(|cause| format!("cargo build: {cause}"))?;
    if !status.success() {
        return Err(format!("cargo build --target {}: {status}", aarch64::TARGET));
    }
    let program = root.join("target").join(aarch64::TARGET).join("debug/nerite");
    let script = root.join(SCRIPT);
    write_script(&script, &runner, &program)?;
    println!("NERITE_BIN={}", script.display());
    Ok(())
}

fn write_script(script: &Path, runner: &[&str], program: &Path) -> Result<(), String> {
    let fault = |cause| format!("{}: {cause}", script.display());
    let folder: PathBuf = script.parent().unwrap_or(script).into();
    fs::create_dir_all(&folder).map_err(fault)?;
    let text = format!("#!/bin/sh\nexec {} '{}' \"$@\"\n", runner.join(" "), program.display());
    fs::write(script, text).map_err(fault)?;
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).map_err(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_hands_its_words_to_the_program() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("emulated/nerite");
        write_script(&script, &["env", "X=1"], Path::new("/bin/echo")).expect("a script");
        // By sh: the kernel refuses to start a file that a process of another test inherited while it was written.
        let done = Command::new("sh").arg(&script).args(["a b", "--c"]).output().expect("it starts");
        assert_eq!(String::from_utf8_lossy(&done.stdout), "a b --c\n");
    }
}
