//! Does the server work with the GPU of this machine?

use std::path::Path;
use std::process::{Command, ExitCode};

/// Builds the server and runs its check, which prints a table. Returns the exit code of the check: 0, 1 if something failed, 2 without a GPU.
/// `NERITE_CUDA_LIBRARY` names another driver. `more` are further arguments of the check.
pub fn run(root: &Path, more: &[&str]) -> Result<ExitCode, String> {
    let build = cargo(root, &["build", "--release", "--locked", "-p", "nerite-server", "--bin", "nerite"])?;
    if build != Some(0) {
        return Err("the server does not build".into());
    }
    let words = ["run", "--release", "--locked", "--quiet", "-p", "nerite-server", "--example", "gpu_check", "--"];
    let ended = cargo(root, &[&words, more].concat())?;
    // Without a code it was ended by a signal, which is a failure.
    Ok(ended.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Runs the same cargo that runs this program. Returns its exit code.
fn cargo(root: &Path, words: &[&str]) -> Result<Option<i32>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo).args(words).current_dir(root).status();
    status.map(|status| status.code()).map_err(|cause| format!("cannot start cargo: {cause}"))
}
