//! How does the server compare with the real Triton?

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::steps;
use crate::summary::Limits;
use crate::task;

/// Installs and builds what is needed, and runs `benches/peer.py`. `more` are its arguments.
pub fn run(root: &Path, more: &[&str]) -> Result<ExitCode, String> {
    // Without perf_analyzer its rows say so, so what is not to be had is no failure.
    let prepared = task::run(root, steps::PEER, Limits::None);
    if prepared != ExitCode::SUCCESS {
        return Ok(prepared);
    }
    let program = root.join(".venv/bin/python");
    let status = Command::new(&program).arg("benches/peer.py").args(more).current_dir(root).status();
    let status = status.map_err(|cause| format!("{}: {cause}", program.display()))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    // Without a code it was ended by a signal, which is a failure.
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
