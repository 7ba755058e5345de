//! Does everything compile for aarch64 as well?
//!
//! All crates of the workspace are checked, and what is made from C on the way is compiled: `ring`, and the guard of Python models' processes, which a
//! build script links. So Rust's standard library for that machine and a C compiler for it are needed:
//!
//! ```text
//! rustup target add aarch64-unknown-linux-gnu
//! apt-get install gcc-aarch64-linux-gnu
//! ```
//!
//! Nothing runs on such a machine here. `emulated.rs` makes a server that an emulator runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Rust's name of it.
pub const TARGET: &str = "aarch64-unknown-linux-gnu";
/// The C compiler for it. Its name is what `ring` looks for.
pub const COMPILER: &str = "aarch64-linux-gnu-gcc";
/// The variable that tells cargo which linker makes programs for it.
pub const LINKER: &str = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER";
/// The machine of an ELF file, and where it says so.
const MACHINE: [u8; 2] = [183, 0];
const MACHINE_AT: usize = 18;

/// Checks all crates, and makes the program and the library that packages for aarch64 are tried with.
pub fn run(root: &Path) -> Result<(), String> {
    compile(root, &["check", "--workspace"])?;
    let unoptimised = "profile.dev.package.\"*\".opt-level=0";
    compile(root, &["build", "-p", "nerite-server", "-p", "nerite-inprocess", "--config", unoptimised])?;
    // Its build script goes on without it.
    let guards = guard_libraries(root);
    if guards.iter().any(|library| is_for_machine(library)) {
        return Ok(());
    }
    Err(format!("of {} guard libraries for Python models none is for {TARGET}", guards.len()))
}

fn compile(root: &Path, words: &[&str]) -> Result<(), String> {
    let mut cargo = Command::new(cargo());
    cargo.args(words).args(["--locked", "--target", TARGET]).current_dir(root).env(LINKER, COMPILER);
    let status = cargo.status().map_err(|cause| format!("cargo {}: {cause}", words[0]))?;
    if status.success() { Ok(()) } else { Err(format!("cargo {} --target {TARGET}: {status}", words[0])) }
}

/// What is not here, and where it comes from.
pub fn missing(root: &Path) -> Option<String> {
    let mut rustc = Command::new("rustc");
    let found = rustc.args(["--print", "target-libdir", "--target", TARGET]).current_dir(root).output().ok()?;
    let libraries = PathBuf::from(String::from_utf8_lossy(&found.stdout).trim());
    if !libraries.is_dir() {
        return Some(format!(
            "Rust's standard library for {TARGET} is missing; `rustup target add {TARGET}` brings it"
        ));
    }
    let compiler = Command::new(COMPILER).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let has_compiler = compiler.is_ok_and(|status| status.success());
    (!has_compiler).then(|| format!("{COMPILER} is missing; Debian's package gcc-aarch64-linux-gnu brings it"))
}

/// The guard libraries that builds for this target left. A build directory keeps those of earlier builds.
fn guard_libraries(root: &Path) -> Vec<PathBuf> {
    let builds = root.join("target").join(TARGET).join("debug/build");
    let of_python = |name: &str| name.starts_with("nerite-python-");
    let entries = builds.read_dir().into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_name().to_str().is_some_and(of_python));
    folders.map(|entry| entry.path().join("out/guard_library")).filter(|file| file.is_file()).collect()
}

fn is_for_machine(library: &Path) -> bool {
    let bytes = fs::read(library).unwrap_or_default();
    bytes.starts_with(b"\x7fELF") && bytes.get(MACHINE_AT..MACHINE_AT + 2) == Some(&MACHINE)
}

fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_says_for_which_machine_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("library");
        let mut header = *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\xb7\0";
        fs::write(&file, header).expect("a file");
        assert!(is_for_machine(&file));
        // x86-64, and none at all.
        header[MACHINE_AT] = 62;
        fs::write(&file, header).expect("a file");
        assert!(!is_for_machine(&file));
        fs::write(&file, []).expect("a file");
        assert!(!is_for_machine(&file) && !is_for_machine(folder.path()));
    }
}
