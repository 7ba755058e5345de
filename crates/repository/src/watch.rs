//! When do files of the repositories change?

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::limits::{IMPORTED_FOLDERS_MAX, MODEL_DEPTH_MAX, WATCHED_FOLDERS_MAX};
use crate::store::{PYTHON_CACHE, Store};

/// The events of a folder that the kernel reports. `MODIFY` is among them, so that the caller delays its next read while files are being written.
const EVENTS: WatchFlags = WatchFlags::ATTRIB
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::MOVE_SELF);

/// The events of a folder of imported files. A file is reported when its writer closes it, so a log in the same folder makes few events.
const IMPORTED_EVENTS: WatchFlags = EVENTS.difference(WatchFlags::MODIFY).difference(WatchFlags::ATTRIB);

/// Watches the folders of all repositories, and of files that models import from elsewhere, by inotify(7). The descriptor ([`AsFd`]) is readable once something changed.
///
/// The watch reports that something changed, but not what. The caller reads the repositories ([`Store::read`]) and compares. The watch does not see
/// changes of files that a link in a model's directory points to, or changes by another host on a network file system. So the caller must also read
/// the repositories at an interval.
#[derive(Debug)]
pub struct RepositoryWatch {
    inotify: OwnedFd,
    /// The folders that are watched, by the kernel's numbers.
    folders: BTreeMap<i32, Watched>,
}

/// The part of a folder whose changes may matter to a model.
#[derive(Debug)]
enum Watched {
    /// Everything: the folder belongs to a repository.
    All,
    /// The files of these names, which models import.
    Files(BTreeSet<Vec<u8>>),
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
    /// There are more than [`WATCHED_FOLDERS_MAX`] folders, more than [`IMPORTED_FOLDERS_MAX`] of imported files, or more than the kernel allows this user (`fs.inotify.max_user_watches`).
    Some {
        /// How many are watched.
        watched: usize,
    },
}

impl RepositoryWatch {
    /// A watch without folders: [`RepositoryWatch::follow`] adds them. It fails if the user has too many watches (`fs.inotify.max_user_instances`).
    pub fn new() -> io::Result<RepositoryWatch> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(RepositoryWatch { inotify, folders: BTreeMap::new() })
    }

    /// Watches the folders that the repositories have now, and those of the files that models `imported` from elsewhere, and no others. Call this
    /// before each read of the repositories, so that changes after the read are seen.
    pub fn follow(&mut self, store: &Store, imported: &BTreeSet<PathBuf>) -> Coverage {
        let mut walk = Walk { inotify: self.inotify.as_fd(), folders: BTreeMap::new(), is_full: false };
        let repositories = store.repositories();
        for repository in &repositories {
            walk.watch(repository);
        }
        // If a repository cannot be listed, the read that follows reports the error.
        let listing = store.list().unwrap_or_default();
        for directory in listing.models().flat_map(|(_, directories)| directories) {
            walk.watch_all(directory, 0);
        }
        walk.watch_imported(imported);
        let Walk { folders, is_full, .. } = walk;
        for &gone in self.folders.keys().filter(|number| !folders.contains_key(number)) {
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
                    // The kernel sends this event after a watch was removed.
                    let is_echo = event.events().contains(ReadFlags::IGNORED);
                    let is_cache = event.file_name().is_some_and(|name| name.to_bytes() == PYTHON_CACHE.as_bytes());
                    if !is_echo && !is_cache && self.may_matter(event.wd(), event.file_name()) {
                        changed = changed.max(what_changed(event.events()));
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return changed,
            }
        }
    }

    /// Whether an event of this folder may matter to a model. The event is about a file with this name, or about the folder itself if there is no
    /// name.
    fn may_matter(&self, folder: i32, name: Option<&CStr>) -> bool {
        match (self.folders.get(&folder), name) {
            (Some(Watched::Files(names)), Some(name)) => names.contains(name.to_bytes()),
            _ => true,
        }
    }
}

/// Whether an event is about files or may be about new folders.
fn what_changed(events: ReadFlags) -> Changed {
    let comes = ReadFlags::CREATE | ReadFlags::MOVED_TO;
    let is_new_folder = events.contains(ReadFlags::ISDIR) && events.intersects(comes);
    // Lost events may have been about folders.
    if is_new_folder || events.contains(ReadFlags::QUEUE_OVERFLOW) { Changed::Folders } else { Changed::Files }
}

impl AsFd for RepositoryWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// A walk over folders, which watches each of them.
struct Walk<'a> {
    inotify: BorrowedFd<'a>,
    folders: BTreeMap<i32, Watched>,
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
            Ok(number) => self.folders.insert(number, Watched::All).is_none(),
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

    /// Watches the folders of these files. Call this after the folders of repositories were watched. It does not change those.
    fn watch_imported(&mut self, files: &BTreeSet<PathBuf>) {
        let mut by_folder: BTreeMap<&Path, BTreeSet<Vec<u8>>> = BTreeMap::new();
        for file in files {
            let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else { continue };
            by_folder.entry(folder).or_default().insert(name.as_bytes().to_vec());
        }
        self.is_full |= by_folder.len() > IMPORTED_FOLDERS_MAX;
        for (folder, names) in by_folder.into_iter().take(IMPORTED_FOLDERS_MAX) {
            if self.folders.len() >= WATCHED_FOLDERS_MAX {
                self.is_full = true;
                return;
            }
            // The flag keeps the events that a folder of a repository has.
            let events = IMPORTED_EVENTS | WatchFlags::ONLYDIR | WatchFlags::MASK_ADD;
            match inotify::add_watch(self.inotify, folder, events) {
                Ok(number) => match self.folders.entry(number).or_insert_with(|| Watched::Files(BTreeSet::new())) {
                    Watched::All => {}
                    // Several paths may lead to one folder.
                    Watched::Files(known) => known.extend(names),
                },
                Err(Errno::NOSPC) => self.is_full = true,
                // The folder is gone, or cannot be read.
                Err(_) => {}
            }
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

    struct Repository {
        directory: tempfile::TempDir,
        store: Store,
        watch: RepositoryWatch,
    }

    /// A repository of one model with one version, watched.
    fn watched() -> Repository {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("m/1/lib")).unwrap();
        let repositories = vec![directory.path().to_owned()];
        let store = Store::open(StoreOptions { repositories, ..StoreOptions::default() }).unwrap();
        let mut watch = RepositoryWatch::new().unwrap();
        assert_eq!(watch.follow(&store, &BTreeSet::new()), Coverage::All);
        assert_eq!(watch.take_changes(), Changed::Nothing, "nothing changed yet");
        Repository { directory, store, watch }
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
        assert_eq!(watched.watch.follow(&watched.store, &BTreeSet::new()), Coverage::All);
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
        assert_eq!(watched.watch.follow(&watched.store, &BTreeSet::new()), Coverage::All);
        assert_eq!(watched.watch.folders.len(), 4, "the repository, m, m/1, and m/1/lib");
    }

    /// Watches `a.py` and `b.py` of a folder outside of the repository as well.
    fn imported_from(repository: &mut Repository) -> tempfile::TempDir {
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join("a.py"), "").unwrap();
        let files = ["a.py", "b.py"].iter().map(|name| elsewhere.path().join(name)).collect();
        assert_eq!(repository.watch.follow(&repository.store, &files), Coverage::All);
        repository.watch.take_changes();
        elsewhere
    }

    #[track_caller]
    fn check_imported(seen: Changed, change: impl FnOnce(&Path)) {
        let mut repository = watched();
        let elsewhere = imported_from(&mut repository);
        change(elsewhere.path());
        assert_eq!(repository.watch.take_changes(), seen);
    }

    #[test]
    fn only_imported_files_of_other_folders_are_followed() {
        check_imported(Changed::Files, |folder| fs::write(folder.join("a.py"), "x = 1").unwrap());
        check_imported(Changed::Files, |folder| fs::write(folder.join("b.py"), "").unwrap());
        check_imported(Changed::Files, |folder| {
            fs::write(folder.join("a.py~"), "x = 1").unwrap();
            fs::rename(folder.join("a.py~"), folder.join("a.py")).unwrap();
        });
        check_imported(Changed::Files, |folder| fs::remove_file(folder.join("a.py")).unwrap());
        check_imported(Changed::Nothing, |folder| fs::write(folder.join("log.txt"), "x").unwrap());
        check_imported(Changed::Nothing, |folder| fs::create_dir(folder.join("other")).unwrap());
    }

    #[test]
    fn imported_files_that_are_followed_no_longer_cost_no_watch() {
        let mut repository = watched();
        let elsewhere = imported_from(&mut repository);
        assert_eq!(repository.watch.folders.len(), 5, "the repository, m, m/1, m/1/lib, and the other folder");
        assert_eq!(repository.watch.follow(&repository.store, &BTreeSet::new()), Coverage::All);
        assert_eq!(repository.watch.folders.len(), 4);
        fs::write(elsewhere.path().join("a.py"), "x = 1").unwrap();
        assert_eq!(repository.watch.take_changes(), Changed::Nothing);
    }

    #[test]
    fn a_repository_stays_watched_as_a_whole_if_a_file_in_it_is_imported() {
        let mut repository = watched();
        let root = repository.directory.path().to_owned();
        let files = BTreeSet::from([root.join("shared.py"), root.join("m/1/lib/helper.py")]);
        assert_eq!(repository.watch.follow(&repository.store, &files), Coverage::All);
        fs::write(root.join("m/1/lib/other.py"), "").unwrap();
        assert_eq!(repository.watch.take_changes(), Changed::Files);
    }

    #[test]
    fn folders_of_imported_files_are_limited() {
        let mut repository = watched();
        let files = (0..=IMPORTED_FOLDERS_MAX).map(|at| PathBuf::from(format!("/nowhere/{at}/a.py"))).collect();
        assert_eq!(repository.watch.follow(&repository.store, &files), Coverage::Some { watched: 4 });
    }
}
