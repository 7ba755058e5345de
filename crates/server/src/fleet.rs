//! How does `nerite fleet` reach the Python package that does it?
//!
//! Replicas on several machines are no work of this program: Ray runs them. The package `nerite-client` has the command, as the program `nerite-fleet`.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

const PROGRAM: &str = "nerite-fleet";
/// The commands that it knows.
pub(crate) const WORDS: &[&str] = &["up", "roll", "status", "down", "fetch"];

/// `nerite fleet`; `words` are those after that word. The other program takes the place of this one.
pub fn main(words: &[String]) -> ExitCode {
    let error = Command::new(program()).args(words).exec();
    eprintln!("nerite fleet: {PROGRAM}: {error}; it is in the Python package: pip install nerite[fleet]");
    ExitCode::FAILURE
}

/// The program beside this one, as a wheel installs both, or else the one on the path.
fn program() -> PathBuf {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(OsStr::new(PROGRAM)));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| PROGRAM.into())
}
