//! When do files of the repositories change?

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::limits::{MODEL_DEPTH_MAX, WATCHED_FOLDERS_MAX};
use crate::store::{PYTHON_CACHE, Store};

/// The events of a folder that the kernel reports. `MODIFY` is among them because files that are still being written delay a look.
const EVENTS: WatchFlags = WatchFlags::ATTRIB
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::MOVE_SELF);

/// Watches the folders of all repositories, by inotify(7). The descriptor ([`AsFd`]) is readable once something changed.
///
/// It reports that something changed, but not what. The caller reads the repositories ([`Store::read`]) and compares. It does not see changes of
/// files that a link in a model's directory points to, or changes by another host on a network file system. So the caller must also look at an
/// interval.
#[derive(Debug)]
pub struct RepositoryWatch {
    inotify: OwnedFd,
    /// The kernel's numbers of the folders that are watched.
    folders: BTreeSet<i32>,
}

/// The changes since the last call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Changed {
    /// Nothing that may matter to a model.
    Nothing,
    /// Files changed, or folders were removed.
    Files,
    /// There may be new folders. Changes in them are seen only after [`RepositoryWatch::follow`] was called.
    Folders,
}

/// Whether all folders are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// Each folder that can be read is watched.
    All,
    /// There are more than [`WATCHED_FOLDERS_MAX`] folders, or more than the kernel allows this user (`fs.inotify.max_user_watches`).
    Some {
        /// How many are watched.
        watched: usize,
    },
}

impl RepositoryWatch {
    /// A watch without folders: [`RepositoryWatch::follow`] adds them. It fails if the user has too many watches (`fs.inotify.max_user_instances`).
    pub fn new() -> io::Result<RepositoryWatch> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(RepositoryWatch { inotify, folders: BTreeSet::new() })
    }

    /// Watches the folders that the repositories have now, and no others. Call it before each look, so that changes after the look are seen.
    pub fn follow(&mut self, store: &Store) -> Coverage {
        let mut walk = Walk { inotify: self.inotify.as_fd(), folders: BTreeSet::new(), is_full: false };
        let repositories = store.repositories();
        for repository in &repositories {
            walk.watch(repository);
        }
        // If a repository cannot be listed, the look that follows reports it.
        let listing = store.list().unwrap_or_default();
        for directory in listing.models().flat_map(|(_, directories)| directories) {
            walk.watch_all(directory, 0);
        }
        let Walk { folders, is_full, .. } = walk;
        for &gone in self.folders.difference(&folders) {
            // The kernel removed it already if the folder was deleted.
            let _ = inotify::remove_watch(&self.inotify, gone);
        }
        self.folders = folders;
        if is_full { Coverage::Some { watched: self.folders.len() } } else { Coverage::All }
    }

    /// Takes the kernel's events since the last call. Returns the change that may matter to a model.
    pub fn take_changes(&self) -> Changed {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut changed = Changed::Nothing;
        loop {
            match reader.next() {
                Ok(event) => {
                    // This event follows the removal of a watch.
                    let is_echo = event.events().contains(ReadFlags::IGNORED);
                    let is_cache = event.file_name().is_some_and(|name| name.to_bytes() == PYTHON_CACHE.as_bytes());
                    if !is_echo && !is_cache {
                        changed = changed.max(what_changed(event.events()));
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return changed,
            }
        }
    }
}

/// The object of an event.
fn what_changed(events: ReadFlags) -> Changed {
    let comes = ReadFlags::CREATE | ReadFlags::MOVED_TO;
    let is_new_folder = events.contains(ReadFlags::ISDIR) && events.intersects(comes);
    // Events that were lost may have been of folders.
    if is_new_folder || events.contains(ReadFlags::QUEUE_OVERFLOW) { Changed::Folders } else { Changed::Files }
}

impl AsFd for RepositoryWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// A walk that watches the folders it comes to.
struct Walk<'a> {
    inotify: BorrowedFd<'a>,
    folders: BTreeSet<i32>,
    /// Whether a folder was left out because there are too many.
    is_full: bool,
}

impl Walk<'_> {
    /// Watches one folder. Returns whether it was not watched before in this walk.
    fn watch(&mut self, folder: &Path) -> bool {
        if self.folders.len() >= WATCHED_FOLDERS_MAX {
            self.is_full = true;
            return false;
        }
        match inotify::add_watch(self.inotify, folder, EVENTS | WatchFlags::ONLYDIR) {
            Ok(number) => self.folders.insert(number),
            Err(Errno::NOSPC) => {
                self.is_full = true;
                false
            }
            // A file, or a folder that is gone or cannot be read.
            Err(_) => false,
        }
    }

    /// Watches a folder and all folders in it. The walk skips a folder that it has watched before, so it ends even if links form a circle.
    fn watch_all(&mut self, folder: &Path, depth: usize) {
        if depth > MODEL_DEPTH_MAX || !self.watch(folder) {
            return;
        }
        for inner in folders_in(folder) {
            self.watch_all(&inner, depth + 1);
        }
    }
}

/// The folders in a folder, including links to folders. Empty if it cannot be read.
fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let others = entries.filter(|entry| entry.file_name() != PYTHON_CACHE);
    others.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::symlink;

    use super::*;
    use crate::StoreOptions;

    struct Watched {
        directory: tempfile::TempDir,
        store: Store,
        watch: RepositoryWatch,
    }

    /// A repository of one model with one version, watched.
    fn watched() -> Watched {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("m/1/lib")).unwrap();
        let repositories = vec![directory.path().to_owned()];
        let store = Store::open(StoreOptions { repositories, ..StoreOptions::default() }).unwrap();
        let mut watch = RepositoryWatch::new().unwrap();
        assert_eq!(watch.follow(&store), Coverage::All);
        assert_eq!(watch.take_changes(), Changed::Nothing, "nothing changed yet");
        Watched { directory, store, watch }
    }

    #[track_caller]
    fn check(seen: Changed, change: impl FnOnce(&Path)) {
        let watched = watched();
        change(watched.directory.path());
        assert_eq!(watched.watch.take_changes(), seen);
        assert_eq!(watched.watch.take_changes(), Changed::Nothing, "it was taken");
    }

    #[test]
    fn changes_of_files_and_folders_are_seen() {
        check(Changed::Files, |root| fs::write(root.join("m/config.pbtxt"), "").unwrap());
        check(Changed::Files, |root| fs::write(root.join("m/1/model.py"), "").unwrap());
        check(Changed::Files, |root| fs::write(root.join("m/1/lib/helper.py"), "").unwrap());
        check(Changed::Folders, |root| fs::create_dir(root.join("m/2")).unwrap());
        check(Changed::Folders, |root| fs::create_dir(root.join("n")).unwrap());
        check(Changed::Files, |root| fs::remove_dir_all(root.join("m")).unwrap());
        check(Changed::Folders, |root| fs::rename(root.join("m"), root.join("n")).unwrap());
        check(Changed::Files, |root| symlink("1", root.join("m/2")).unwrap());
    }

    #[test]
    fn reads_and_pythons_own_files_are_not_changes() {
        check(Changed::Nothing, |root| assert_eq!(fs::read_dir(root.join("m/1")).unwrap().count(), 1));
        check(Changed::Nothing, |root| {
            fs::create_dir(root.join("m/1/__pycache__")).unwrap();
            fs::write(root.join("m/1/__pycache__/model.cpython-311.pyc"), "").unwrap();
        });
    }

    #[test]
    fn new_folders_are_watched_from_the_next_call_and_folders_of_others_no_longer() {
        let mut watched = watched();
        let root = watched.directory.path().to_owned();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::create_dir(root.join("m/2")).unwrap();
        fs::rename(root.join("m/1"), elsewhere.path().join("1")).unwrap();
        assert_eq!(watched.watch.take_changes(), Changed::Folders);
        assert_eq!(watched.watch.follow(&watched.store), Coverage::All);
        watched.watch.take_changes();
        fs::write(elsewhere.path().join("1/model.py"), "").unwrap();
        assert_eq!(watched.watch.take_changes(), Changed::Nothing, "it is no longer in the repository");
        fs::write(root.join("m/2/model.py"), "").unwrap();
        assert_eq!(watched.watch.take_changes(), Changed::Files);
    }

    #[test]
    fn links_in_a_circle_are_watched_once() {
        let mut watched = watched();
        symlink("..", watched.directory.path().join("m/1/up")).unwrap();
        assert_eq!(watched.watch.follow(&watched.store), Coverage::All);
        assert_eq!(watched.watch.folders.len(), 4, "the repository, m, m/1, and m/1/lib");
    }
}
