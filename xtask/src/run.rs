//! How is a list of commands run?

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::chores::Errand;

/// Names the ONNX Runtime to use.
const ORT: &str = "ORT_DYLIB_PATH";

/// Runs them in order, from the top of the workspace, and stops at the first that fails.
pub fn all(root: &Path, errands: &[Errand]) -> Result<(), String> {
    for (number, errand) in errands.iter().enumerate() {
        let line = errand.words.join(" ");
        println!("== {}/{} {}: {line}", number + 1, errands.len(), errand.about);
        let start = Instant::now();
        one(root, errand).map_err(|reason| format!("== failed: {line}: {reason}"))?;
        println!("== {} s", start.elapsed().as_secs());
    }
    Ok(())
}

fn one(root: &Path, errand: &Errand) -> Result<(), String> {
    let Some((program, words)) = errand.words.split_first() else { return Ok(()) };
    let program = resolve(root, program)?;
    let mut command = Command::new(&program);
    command.args(words).current_dir(root);
    if errand.words.starts_with(&["cargo", "test"])
        && std::env::var_os(ORT).is_none()
        && let Some(library) = onnx_runtime(root)
    {
        command.env(ORT, library);
    }
    let status = command.status().map_err(|cause| format!("cannot start {}: {cause}", program.display()))?;
    if status.success() { Ok(()) } else { Err(status.to_string()) }
}

/// The ONNX Runtime of the tests' Python environment. Rust tests that need one skip themselves without it.
fn onnx_runtime(root: &Path) -> Option<PathBuf> {
    let inside = |folder: PathBuf| folder.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let mut libraries =
        inside(root.join(".venv/lib")).flat_map(|python| inside(python.join("site-packages/onnxruntime/capi")));
    libraries.find(|file| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libonnxruntime.so.")))
}

/// The same cargo that runs this program, this program itself, or what the words say.
fn resolve(root: &Path, program: &str) -> Result<OsString, String> {
    match program {
        "cargo" => Ok(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())),
        "xtask" => std::env::current_exe().map(OsString::from).map_err(|cause| format!("cannot find myself: {cause}")),
        _ if program.contains('/') => Ok(root.join(program).into_os_string()),
        _ => Ok(program.into()),
    }
}
