//! Where are the environments of models unpacked, and when are they removed?
//!
//! ```text
//!   EXECUTION_ENV_PATH ─► a directory ─────────────────────────────────► used as it is
//!                         an archive ─► unpacked before? ─ yes ────────► the same directory, for all models that name it
//!                                       (path, bytes, time)  no ─► fresh directory, unpacked, conda-unpack ┘
//! ```
//!
//! A directory is locked (`flock`) by the server that made it. It is removed when the server ends, or with its last model once the archive was
//! replaced. A killed server leaves its directory unlocked, and the next server removes it.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use nerite_locks::Mutex;
/// A directory with an unpacked environment. It is removed when this is dropped.
pub(super) use nerite_sandbox::LockedDirectory as Unpacked;
use nerite_sandbox::Sandbox;

use super::archive::{Bounds, unpack};
use super::bounded::{RunBounds, run};
use super::probe::how;
use super::search::SearchEnvironment;
use super::{Interpreter, NoPython, Origin, activation};

/// The placeholder for the model's directory in the parameter.
const MODEL_DIRECTORY: &str = "$$TRITON_MODEL_DIRECTORY";
/// The prefix of directories with unpacked environments.
const PREFIX: &str = "nerite-python-";
/// How long the server waits at its end for their removal.
const END_MAX: Duration = Duration::from_secs(10);
/// The most lines of the output of `conda-unpack` in an error.
const LINES_MAX: usize = 3;

/// Environments of one server.
#[derive(Default)]
pub(crate) struct Environments {
    /// Archives by their paths. The lock of each is held while it is unpacked. Other models with the same archive wait for it.
    archives: Mutex<HashMap<PathBuf, Arc<Mutex<Option<Kept>>>>>,
    /// All unpacked environments, including those of replaced archives that are still in use.
    unpacked: Mutex<Vec<Weak<Unpacked>>>,
}

/// An archive that was unpacked.
struct Kept {
    stamp: Stamp,
    unpacked: Arc<Unpacked>,
}

/// Identifies an archive, so that its replacement is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(found: &Metadata) -> Stamp {
        Stamp { bytes: found.len(), modified: found.modified().ok() }
    }
}

impl Environments {
    /// The interpreter of the environment that a model names.
    pub(super) fn interpreter(
        &self,
        named: &str,
        model_dir: &Path,
        search: &SearchEnvironment,
        bounds: RunBounds<'_>,
        sandbox: Option<&Arc<Sandbox>>,
    ) -> Result<Interpreter, NoPython> {
        let expanded = named.replace(MODEL_DIRECTORY, &model_dir.display().to_string());
        let origin = Origin::Environment(expanded.clone());
        let about = |why: String| {
            let found = format!("{why} (EXECUTION_ENV_PATH '{expanded}')");
            NoPython { found, cure: String::new() }
        };
        let missing = |error| about(format!("Failed to get the canonical path for {expanded}. {error}"));
        let path = real(Path::new(&expanded)).map_err(missing)?;
        let found = path.metadata().map_err(missing)?;
        if found.is_dir() {
            return interpreter(&path, origin, None, search, sandbox).map_err(about);
        }
        if !found.is_file() {
            return Err(about("an environment is a directory or a tar file, and this is neither".to_owned()));
        }
        let slot =
            Arc::clone(self.archives.lock().unwrap_or_else(PoisonError::into_inner).entry(path.clone()).or_default());
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = &*slot
            && kept.stamp == Stamp::of(&found)
        {
            let found = interpreter(kept.unpacked.path(), origin, Some(&kept.unpacked), search, sandbox);
            return found.map_err(about);
        }
        let (stamp, unpacked) = unpacked(&path, &std::env::temp_dir()).map_err(about)?;
        let mut all = self.unpacked.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&unpacked));
        drop(all);
        let made = interpreter(unpacked.path(), origin, Some(&unpacked), search, sandbox).map_err(about)?;
        run_conda_unpack(&made, unpacked.path(), bounds).map_err(about)?;
        *slot = Some(Kept { stamp, unpacked });
        Ok(made)
    }

    /// Removes all unpacked environments, even if they are in use, because the server ends.
    pub(crate) fn end(&self) {
        let all = std::mem::take(&mut *self.unpacked.lock().unwrap_or_else(PoisonError::into_inner));
        let all: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        Unpacked::remove_all(all.iter().map(|unpacked| &**unpacked), END_MAX);
    }
}

fn interpreter(
    root: &Path,
    origin: Origin,
    unpacked: Option<&Arc<Unpacked>>,
    search: &SearchEnvironment,
    sandbox: Option<&Arc<Sandbox>>,
) -> Result<Interpreter, String> {
    let program = activation::program(root)?;
    let variables = activation::variables(root, search);
    let sandbox = sandbox.map(Arc::clone);
    Ok(Interpreter { program, origin, variables, unpacked: unpacked.map(Arc::clone), sandbox })
}

/// The real path of what `path` opens; `path` itself if that has none here, as below `/proc/PID/root`.
fn real(path: &Path) -> io::Result<PathBuf> {
    let place = |found: &Metadata| (found.dev(), found.ino());
    let opened = place(&path.metadata()?);
    let real = path.canonicalize().ok().filter(|real| real.metadata().is_ok_and(|found| place(&found) == opened));
    real.map_or_else(|| std::path::absolute(path), Ok)
}

/// Unpacks an archive. After an error the directory is removed.
fn unpacked(archive: &Path, below: &Path) -> Result<(Stamp, Arc<Unpacked>), String> {
    Unpacked::sweep(PREFIX, below);
    let began = Instant::now();
    let cannot = |error: &dyn std::fmt::Display| format!("the environment cannot be unpacked: {error}");
    let file = File::open(archive).map_err(|error| cannot(&error))?;
    // The stamp is that of the opened file. Another file may have replaced it at its path.
    let stamp = file.metadata().map(|found| Stamp::of(&found)).map_err(|error| cannot(&error))?;
    let unpacked = Unpacked::make(PREFIX, below).map_err(|error| {
        cannot(&format_args!("no directory for it in {} ({error}); TMPDIR names another", below.display()))
    })?;
    unpack(file, unpacked.path(), Bounds::default()).map_err(|refusal| cannot(&refusal))?;
    log::info!("unpacked {} into {} in {:.1?}", archive.display(), unpacked.path().display(), began.elapsed());
    for script in activation::scripts(unpacked.path()) {
        log::warn!(
            "{}: etc/conda/activate.d/{script} is not run; set what it sets in the server's environment",
            archive.display()
        );
    }
    Ok((stamp, Arc::new(unpacked)))
}

/// Runs conda-unpack, a program of the archive that writes the new path into the environment's files.
fn run_conda_unpack(made: &Interpreter, root: &Path, bounds: RunBounds<'_>) -> Result<(), String> {
    let script = root.join("bin/conda-unpack");
    if !script.exists() {
        return Ok(());
    }
    let mut command: Command = made.command_writing(Some(root));
    command.arg(&script).current_dir(root);
    let ran = run(command, bounds).map_err(|error| format!("its bin/conda-unpack cannot be run: {error}"))?;
    let words = match ran.last_lines(LINES_MAX) {
        output if output.is_empty() => "nothing".to_owned(),
        output => format!("\"{output}\""),
    };
    match ran.end {
        Some(end) if end.success() => Ok(()),
        Some(end) => Err(format!("its bin/conda-unpack {}, and printed {words}", how(end))),
        None if let Some(why) = bounds.stopped() => Err(format!("its bin/conda-unpack was killed, because {why}")),
        None => Err(format!(
            "its bin/conda-unpack did not end within {} seconds, and printed {words}; \
             --backend-config=python,stub-timeout-seconds gives it more",
            bounds.at_most.unwrap_or_default().as_secs()
        )),
    }
}

#[cfg(test)]
mod tests;
