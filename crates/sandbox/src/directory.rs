//! How is a directory protected from all users but the server's, and who removes it?
//!
//! The server that made it locks it (`flock`), and removes it when nobody uses it any more. A killed server leaves its directories unlocked. The next
//! server that looks removes them.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::removal::remove_tree;

/// A directory for this user alone, below the system's directory for temporary files.
#[derive(Debug)]
pub struct LockedDirectory {
    path: PathBuf,
    /// The directory itself, locked. The lock ends with the server. Cleaners of temporary files skip a locked directory, too.
    lock: Arc<File>,
    /// Whether its removal began.
    is_removed: AtomicBool,
}

impl LockedDirectory {
    /// Makes a directory below `folder`. Its name begins with `prefix`.
    pub fn make(prefix: &str, folder: &Path) -> io::Result<LockedDirectory> {
        for number in 0..u32::MAX {
            let path = folder.join(format!("{prefix}{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            // Between the two calls, another server may have locked the directory in order to remove it, because nobody had locked it.
            if let Ok(lock) = File::open(&path)
                && lock.try_lock().is_ok()
                && is_at(&lock, &path)
            {
                let (lock, is_removed) = (Arc::new(lock), AtomicBool::new(false));
                return Ok(LockedDirectory { path: path.canonicalize()?, lock, is_removed });
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it with all that is in it. Another thread does it, and this waits at most [`WAIT_MAX`].
    pub fn remove(&self) {
        LockedDirectory::remove_all([self], WAIT_MAX);
    }

    /// Removes these directories, and waits at most this long. If the process ends first, the next server removes the rest.
    pub fn remove_all<'a>(directories: impl IntoIterator<Item = &'a LockedDirectory>, at_most: Duration) {
        let first = |one: &&LockedDirectory| !one.is_removed.swap(true, Ordering::AcqRel);
        let first = directories.into_iter().filter(first);
        let pending =
            first.map(|one| PendingRemoval { path: one.path.clone(), lock: Arc::clone(&one.lock), is_own: true });
        remove(pending.collect(), at_most);
    }

    /// Removes directories below `folder` that killed servers of this user left, at most [`SWEPT_MAX`] at a time.
    pub fn sweep(prefix: &str, folder: &Path) {
        let own = rustix::process::getuid().as_raw();
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let left = entries.filter_map(|entry| {
            let (path, name) = (entry.path(), entry.file_name());
            let is_ours = name.as_encoded_bytes().starts_with(prefix.as_bytes())
                && path.symlink_metadata().is_ok_and(|found| found.is_dir() && found.uid() == own);
            let lock = is_ours.then(|| File::open(&path).ok()).flatten()?;
            let is_unused = lock.try_lock().is_ok() && is_at(&lock, &path);
            is_unused.then(|| PendingRemoval { path, lock: Arc::new(lock), is_own: false })
        });
        remove(left.take(SWEPT_MAX).collect(), WAIT_MAX);
    }
}

/// How long a caller waits for the end of a removal. A tree that a model made can take longer than anybody should wait.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// How long a removal may take. A process of the model that has not ended could make files for ever.
const REMOVAL_MAX: Duration = Duration::from_mins(10);
/// How many directories that others left are removed at a time. Each has a descriptor.
const SWEPT_MAX: usize = 64;

/// A directory that is being removed. It is locked until then, so that no other server removes it as well.
struct PendingRemoval {
    path: PathBuf,
    lock: Arc<File>,
    is_own: bool,
}

impl PendingRemoval {
    fn remove(self, at_most: Duration) {
        let path = self.path.display();
        match remove_tree(&self.path, Instant::now() + at_most) {
            Ok(()) if self.is_own => {}
            Ok(()) => log::info!("removed {path}, which a server left that was killed"),
            Err(error) if self.is_own => log::warn!("{path} cannot be removed: {error}"),
            Err(error) => log::warn!("{path}, which a server left that was killed, cannot be removed: {error}"),
        }
        drop(self.lock);
    }
}

/// Removes them on another thread, and waits for it at most this long.
fn remove(pending: Vec<PendingRemoval>, at_most: Duration) {
    if pending.is_empty() {
        return;
    }
    let (done, ended) = mpsc::channel::<()>();
    let work = move || {
        for one in pending {
            one.remove(REMOVAL_MAX);
        }
        drop(done);
    };
    match thread::Builder::new().name("nerite-remove".to_owned()).spawn(work) {
        // Nothing is sent. The channel closes when the work has ended.
        Ok(_) => drop(ended.recv_timeout(at_most)),
        Err(error) => {
            log::warn!("temporary files of models are left to the next server: no thread removes them ({error})");
        }
    }
}

impl Drop for LockedDirectory {
    fn drop(&mut self) {
        self.remove();
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let same = |one: &Metadata, other: &Metadata| (one.dev(), one.ino()) == (other.dev(), other.ino());
    file.metadata().is_ok_and(|one| path.symlink_metadata().is_ok_and(|other| same(&one, &other)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A removal may outlast the wait for it on a busy machine.
    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "nobody wakes those who wait for the end of a file")]
    fn is_gone(path: &Path) {
        let deadline = Instant::now() + Duration::from_mins(1);
        while path.exists() {
            assert!(Instant::now() < deadline, "{} is there", path.display());
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn only_what_nobody_locks_is_swept() {
        let folder = tempfile::tempdir().unwrap();
        let kept = LockedDirectory::make("one-", folder.path()).unwrap();
        for name in ["one-left", "other-left"] {
            fs::create_dir_all(folder.path().join(name).join("below")).unwrap();
        }
        LockedDirectory::sweep("one-", folder.path());
        is_gone(&folder.path().join("one-left"));
        assert!(kept.path().is_dir() && folder.path().join("other-left").is_dir());
        let path = kept.path().to_owned();
        drop(kept);
        is_gone(&path);
    }

    #[test]
    fn who_drops_a_large_directory_waits_for_a_moment_only() {
        let folder = tempfile::tempdir().unwrap();
        let large = LockedDirectory::make("one-", folder.path()).unwrap();
        for name in 0..2_000 {
            File::create(large.path().join(name.to_string())).unwrap();
        }
        let path = large.path().to_owned();
        LockedDirectory::remove_all([&large], Duration::ZERO);
        drop(large);
        // A directory that is being removed is locked, so no other server removes it as well.
        let next = File::open(&path).map(|next| next.try_lock().is_ok() && is_at(&next, &path));
        assert!(!next.unwrap_or(false));
        is_gone(&path);
    }
}
