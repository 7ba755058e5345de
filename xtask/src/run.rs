//! How is a list of commands run?

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Instant;

use crate::tasks::Step;

/// The variable with the path of the ONNX Runtime.
const ORT: &str = "ORT_DYLIB_PATH";

/// Runs the commands in order, in the root of the workspace, and stops at the first failure. At the end it says which took longest.
pub fn all(root: &Path, steps: &[Step]) -> Result<(), String> {
    // Parallel commands are started first. Their output is shown at their place in the order.
    let mut running = Vec::new();
    for (number, step) in steps.iter().enumerate().filter(|(_, step)| step.is_parallel) {
        running.push((number, Background::start(root, step, number).map_err(|reason| failed(step, &reason))?));
    }
    let mut times = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        println!("== {}/{} {}: {}", number + 1, steps.len(), step.about, step.words.join(" "));
        let start = Instant::now();
        let begun = running.iter().position(|(of, _)| *of == number);
        match begun {
            Some(place) => running.swap_remove(place).1.wait(),
            None => one(root, step),
        }
        .map_err(|reason| failed(step, &reason))?;
        times.push((start.elapsed().as_secs(), step.about));
        println!("== {} s", start.elapsed().as_secs());
    }
    println!("== {}", longest(times));
    Ok(())
}

/// The steps by the time that they took. A parallel step counts from where the others had ended.
fn longest(mut times: Vec<(u64, &str)>) -> String {
    times.sort_by_key(|(seconds, _)| std::cmp::Reverse(*seconds));
    let all: u64 = times.iter().map(|(seconds, _)| seconds).sum();
    let lines: Vec<String> = times.iter().map(|(seconds, about)| format!("{seconds:>6} s  {about}")).collect();
    format!("{all} s in all, the longest first:\n{}", lines.join("\n"))
}

fn failed(step: &Step, reason: &str) -> String {
    format!("== failed: {}: {reason}", step.words.join(" "))
}

fn one(root: &Path, step: &Step) -> Result<(), String> {
    let Some(mut command) = command(root, step)? else { return Ok(()) };
    ended(command.status().map_err(|cause| cannot_start(step, &cause))?)
}

/// A command that runs in parallel. Dropping this ends it.
struct Background {
    child: Child,
    output: PathBuf,
}

impl Background {
    fn start(root: &Path, step: &Step, number: usize) -> Result<Background, String> {
        let mut command = command(root, step)?.ok_or("it has no words")?;
        let output = std::env::temp_dir().join(format!("nerite-xtask-{}-{number}", std::process::id()));
        let file = File::create(&output).map_err(|cause| format!("cannot write {}: {cause}", output.display()))?;
        let both = file.try_clone().map_err(|cause| format!("cannot write {}: {cause}", output.display()))?;
        let child = command.stdout(both).stderr(file).spawn().map_err(|cause| cannot_start(step, &cause))?;
        Ok(Background { child, output })
    }

    /// Waits for its end and shows its output.
    fn wait(mut self) -> Result<(), String> {
        let status = self.child.wait().map_err(|cause| cause.to_string())?;
        print!("{}", std::fs::read_to_string(&self.output).unwrap_or_default());
        ended(status)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // It has ended, or its result is not needed any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.output);
    }
}

fn ended(status: ExitStatus) -> Result<(), String> {
    if status.success() { Ok(()) } else { Err(status.to_string()) }
}

fn cannot_start(step: &Step, cause: &std::io::Error) -> String {
    format!("cannot start {}: {cause}", step.words.join(" "))
}

fn command(root: &Path, step: &Step) -> Result<Option<Command>, String> {
    let Some((program, words)) = step.words.split_first() else { return Ok(None) };
    let mut command = Command::new(resolve(root, program)?);
    command.args(words).current_dir(root);
    if step.words.starts_with(&["cargo", "test"])
        && std::env::var_os(ORT).is_none()
        && let Some(library) = onnx_runtime(root)
    {
        command.env(ORT, library);
    }
    Ok(Some(command))
}

/// The ONNX Runtime of the tests' Python environment. Rust tests that need it skip themselves without it.
fn onnx_runtime(root: &Path) -> Option<PathBuf> {
    let inside = |folder: PathBuf| folder.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let mut libraries =
        inside(root.join(".venv/lib")).flat_map(|python| inside(python.join("site-packages/onnxruntime/capi")));
    libraries.find(|file| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libonnxruntime.so.")))
}

/// The path of a program: `cargo` is the cargo that runs this program, `xtask` is this program, other names stay.
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

    fn step(words: &[&'static str], is_parallel: bool) -> Step {
        Step { about: "a test", words: words.to_vec(), is_parallel }
    }

    #[test]
    fn parallel_commands_are_started_first_and_their_failures_count() {
        let folder = tempfile::tempdir().expect("a folder");
        let wait = step(&["sh", "-c", "until [ -e begun ]; do sleep 0.01; done"], false);
        let begin = step(&["touch", "begun"], true);
        all(folder.path(), &[wait.clone(), begin.clone()]).expect("all succeed");
        let fails = step(&["sh", "-c", "touch begun; exit 3"], true);
        let why = all(folder.path(), &[wait, fails]).expect_err("one fails");
        assert!(why.contains("exit status: 3"), "{why}");
    }

    #[test]
    fn the_longest_step_is_printed_first() {
        let text = longest(vec![(3, "lints"), (1200, "tests"), (0, "formatting")]);
        assert_eq!(text, "1203 s in all, the longest first:\n  1200 s  tests\n     3 s  lints\n     0 s  formatting");
    }

    #[test]
    fn parallel_commands_end_with_the_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let start = Instant::now();
        let why = all(folder.path(), &[step(&["false"], false), step(&["sleep", "600"], true)]).expect_err("one fails");
        assert!(why.contains("false") && start.elapsed().as_secs() < 300, "{why}");
    }
}
