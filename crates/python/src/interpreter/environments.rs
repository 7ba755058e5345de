//! Where are the environments that models bring, and who removes what was unpacked?
//!
//! ```text
//!   EXECUTION_ENV_PATH ─► a directory ─────────────────────────────────► used as it is
//!                         an archive ─► unpacked before? ─ yes ────────► the same directory, for all models that name it
//!                                       (path, bytes, time)  no ─► fresh directory, unpacked, conda-unpack ┘
//! ```
//!
//! A directory is locked (`flock`) by the server that made it. It goes with the server, or with the last model that uses it once
//! the archive has become another one; what a server left that was killed is unlocked, and removed by the next one.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use super::archive::{Bounds, unpack};
use super::bounded::run;
use super::probe::how;
use super::search::Surroundings;
use super::{Interpreter, NoPython, Origin, activation};

/// What stands for the model's directory in its parameter.
const MODEL_DIRECTORY: &str = "$$TRITON_MODEL_DIRECTORY";
/// How directories with unpacked environments begin.
const PREFIX: &str = "nerite-python-";
/// Lines of what `conda-unpack` printed that an error repeats.
const LINES_MAX: usize = 3;

/// Environments of one server.
#[derive(Default)]
pub(crate) struct Environments {
    /// Archives by their paths. Each has its own lock, held while it is unpacked: who names it meanwhile waits.
    archives: Mutex<HashMap<PathBuf, Arc<Mutex<Option<Kept>>>>>,
    /// All that were unpacked, those included that only models of an older archive use.
    unpacked: Mutex<Vec<Weak<Unpacked>>>,
}

/// An archive that was unpacked.
struct Kept {
    stamp: Stamp,
    unpacked: Arc<Unpacked>,
}

/// What tells an archive from the one that replaces it.
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
        surroundings: &Surroundings,
        start_max: Duration,
    ) -> Result<Interpreter, NoPython> {
        let expanded = named.replace(MODEL_DIRECTORY, &model_dir.display().to_string());
        let origin = Origin::Environment(expanded.clone());
        let about = |why: String| {
            let found = format!("{why} (EXECUTION_ENV_PATH '{expanded}')");
            NoPython { found, cure: String::new() }
        };
        let missing = |error| about(format!("Failed to get the canonical path for {expanded}. {error}"));
        let path = Path::new(&expanded).canonicalize().map_err(missing)?;
        let found = path.metadata().map_err(missing)?;
        if found.is_dir() {
            return interpreter(&path, origin, None, surroundings).map_err(about);
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
            return interpreter(&kept.unpacked.path, origin, Some(&kept.unpacked), surroundings).map_err(about);
        }
        let (stamp, unpacked) = unpacked(&path, &std::env::temp_dir()).map_err(about)?;
        let mut all = self.unpacked.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&unpacked));
        drop(all);
        let made = interpreter(&unpacked.path, origin, Some(&unpacked), surroundings).map_err(about)?;
        mend(&made, &unpacked.path, start_max).map_err(about)?;
        *slot = Some(Kept { stamp, unpacked });
        Ok(made)
    }

    /// The server ends: removes what was unpacked, whoever still holds it.
    pub(crate) fn end(&self) {
        let all = std::mem::take(&mut *self.unpacked.lock().unwrap_or_else(PoisonError::into_inner));
        all.iter().filter_map(Weak::upgrade).for_each(|unpacked| unpacked.remove());
    }
}

fn interpreter(
    root: &Path,
    origin: Origin,
    unpacked: Option<&Arc<Unpacked>>,
    surroundings: &Surroundings,
) -> Result<Interpreter, String> {
    let program = activation::program(root)?;
    let variables = activation::variables(root, surroundings);
    Ok(Interpreter { program, origin, variables, _unpacked: unpacked.map(Arc::clone) })
}

/// Unpacks an archive. What was there before an error is removed.
fn unpacked(archive: &Path, below: &Path) -> Result<(Stamp, Arc<Unpacked>), String> {
    sweep(below);
    let began = Instant::now();
    let cannot = |error: &dyn std::fmt::Display| format!("the environment cannot be unpacked: {error}");
    let file = File::open(archive).map_err(|error| cannot(&error))?;
    // Of the file that is read, whatever has come to its path meanwhile.
    let stamp = file.metadata().map(|found| Stamp::of(&found)).map_err(|error| cannot(&error))?;
    let unpacked = Unpacked::make(below).map_err(|error| {
        cannot(&format_args!("no directory for it in {} ({error}); TMPDIR names another", below.display()))
    })?;
    unpack(file, &unpacked.path, Bounds::default()).map_err(|refusal| cannot(&refusal))?;
    log::info!("unpacked {} into {} in {:.1?}", archive.display(), unpacked.path.display(), began.elapsed());
    for script in activation::scripts(&unpacked.path) {
        log::warn!(
            "{}: etc/conda/activate.d/{script} is not run; set what it sets in the server's environment",
            archive.display()
        );
    }
    Ok((stamp, Arc::new(unpacked)))
}

/// conda-pack leaves a program that puts the new place into the environment's files, to be run once.
fn mend(made: &Interpreter, root: &Path, at_most: Duration) -> Result<(), String> {
    let script = root.join("bin/conda-unpack");
    if !script.exists() {
        return Ok(());
    }
    let mut command: Command = made.command();
    command.arg(&script).current_dir(root);
    let ran = run(command, at_most).map_err(|error| format!("its bin/conda-unpack cannot be run: {error}"))?;
    let words = match ran.last_lines(LINES_MAX) {
        said if said.is_empty() => "nothing".to_owned(),
        said => format!("\"{said}\""),
    };
    match ran.end {
        Some(end) if end.success() => Ok(()),
        Some(end) => Err(format!("its bin/conda-unpack {}, and printed {words}", how(end))),
        None => Err(format!(
            "its bin/conda-unpack did not end within {} seconds, and printed {words}; \
             --backend-config=python,stub-timeout-seconds gives it more",
            at_most.as_secs()
        )),
    }
}

/// A directory with an unpacked environment, which goes with this.
#[derive(Debug)]
pub(super) struct Unpacked {
    pub(super) path: PathBuf,
    /// The directory itself, locked: a server that is no more locks nothing. Cleaners of temporary files pass it over, too.
    _lock: File,
}

impl Unpacked {
    /// A fresh one below `folder`, for this user alone.
    fn make(folder: &Path) -> io::Result<Unpacked> {
        for number in 0..u32::MAX {
            let path = folder.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            // Another server may have taken it for a dead one's between the two.
            if let Ok(lock) = File::open(&path)
                && lock.try_lock().is_ok()
                && is_at(&lock, &path)
            {
                return Ok(Unpacked { path: path.canonicalize()?, _lock: lock });
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl Unpacked {
    fn remove(&self) {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                log::warn!("{} cannot be removed: {error}", self.path.display());
            }
            _ => {}
        }
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        self.remove();
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let same = |one: &Metadata, other: &Metadata| (one.dev(), one.ino()) == (other.dev(), other.ino());
    file.metadata().is_ok_and(|one| path.symlink_metadata().is_ok_and(|other| same(&one, &other)))
}

/// Removes what servers of this user left that were killed.
fn sweep(folder: &Path) {
    let own = rustix::process::getuid().as_raw();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let is_ours = name.as_encoded_bytes().starts_with(PREFIX.as_bytes())
            && path.symlink_metadata().is_ok_and(|found| found.is_dir() && found.uid() == own);
        if !is_ours {
            continue;
        }
        let Ok(lock) = File::open(&path) else { continue };
        if lock.try_lock().is_ok() && is_at(&lock, &path) {
            match fs::remove_dir_all(&path) {
                Ok(()) => log::info!("removed {}, which a server left that was killed", path.display()),
                Err(error) => {
                    log::warn!("{}, which a server left that was killed, cannot be removed: {error}", path.display());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
