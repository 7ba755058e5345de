//! How is a list of commands run?

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Instant;

use crate::chores::Errand;

/// Names the ONNX Runtime to use.
const ORT: &str = "ORT_DYLIB_PATH";

/// Runs them in order, from the top of the workspace, and stops at the first that fails.
pub fn all(root: &Path, errands: &[Errand]) -> Result<(), String> {
    // Those that run beside others begin first. What they print is shown where they stand in the order.
    let mut running = Vec::new();
    for (number, errand) in errands.iter().enumerate().filter(|(_, errand)| errand.beside) {
        running.push((number, Background::start(root, errand, number).map_err(|reason| failed(errand, &reason))?));
    }
    for (number, errand) in errands.iter().enumerate() {
        println!("== {}/{} {}: {}", number + 1, errands.len(), errand.about, errand.words.join(" "));
        let start = Instant::now();
        let begun = running.iter().position(|(of, _)| *of == number);
        match begun {
            Some(place) => running.swap_remove(place).1.wait(),
            None => one(root, errand),
        }
        .map_err(|reason| failed(errand, &reason))?;
        println!("== {} s", start.elapsed().as_secs());
    }
    Ok(())
}

fn failed(errand: &Errand, reason: &str) -> String {
    format!("== failed: {}: {reason}", errand.words.join(" "))
}

fn one(root: &Path, errand: &Errand) -> Result<(), String> {
    let Some(mut command) = command(root, errand)? else { return Ok(()) };
    ended(command.status().map_err(|cause| cannot_start(errand, &cause))?)
}

/// An errand that runs while others do. It ends with this value.
struct Background {
    child: Child,
    output: PathBuf,
}

impl Background {
    fn start(root: &Path, errand: &Errand, number: usize) -> Result<Background, String> {
        let mut command = command(root, errand)?.ok_or("it has no words")?;
        let output = std::env::temp_dir().join(format!("nerite-xtask-{}-{number}", std::process::id()));
        let file = File::create(&output).map_err(|cause| format!("cannot write {}: {cause}", output.display()))?;
        let both = file.try_clone().map_err(|cause| format!("cannot write {}: {cause}", output.display()))?;
        let child = command.stdout(both).stderr(file).spawn().map_err(|cause| cannot_start(errand, &cause))?;
        Ok(Background { child, output })
    }

    /// Waits for its end and shows what it printed.
    fn wait(mut self) -> Result<(), String> {
        let status = self.child.wait().map_err(|cause| cause.to_string())?;
        print!("{}", std::fs::read_to_string(&self.output).unwrap_or_default());
        ended(status)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // It has ended, or what it does is of no use any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.output);
    }
}

fn ended(status: ExitStatus) -> Result<(), String> {
    if status.success() { Ok(()) } else { Err(status.to_string()) }
}

fn cannot_start(errand: &Errand, cause: &std::io::Error) -> String {
    format!("cannot start {}: {cause}", errand.words.join(" "))
}

fn command(root: &Path, errand: &Errand) -> Result<Option<Command>, String> {
    let Some((program, words)) = errand.words.split_first() else { return Ok(None) };
    let mut command = Command::new(resolve(root, program)?);
    command.args(words).current_dir(root);
    if errand.words.starts_with(&["cargo", "test"])
        && std::env::var_os(ORT).is_none()
        && let Some(library) = onnx_runtime(root)
    {
        command.env(ORT, library);
    }
    Ok(Some(command))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn errand(words: &[&'static str], beside: bool) -> Errand {
        Errand { about: "a test", words: words.to_vec(), beside }
    }

    #[test]
    fn what_runs_beside_others_has_begun_before_them_and_its_failure_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let wait = errand(&["sh", "-c", "until [ -e begun ]; do sleep 0.01; done"], false);
        let begin = errand(&["touch", "begun"], true);
        all(folder.path(), &[wait.clone(), begin.clone()]).expect("all succeed");
        let fails = errand(&["sh", "-c", "touch begun; exit 3"], true);
        let why = all(folder.path(), &[wait, fails]).expect_err("one fails");
        assert!(why.contains("exit status: 3"), "{why}");
    }

    #[test]
    fn what_runs_beside_others_ends_with_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let start = Instant::now();
        let why =
            all(folder.path(), &[errand(&["false"], false), errand(&["sleep", "600"], true)]).expect_err("one fails");
        assert!(why.contains("false") && start.elapsed().as_secs() < 300, "{why}");
    }
}
