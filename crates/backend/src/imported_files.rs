//! Which files outside its directory has a model imported, and have they changed since?

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::limits::{IMPORTED_FILES_MAX, IMPORTED_PATH_BYTES_MAX};
use crate::model_files::FileState;

/// The files that the code of one model version imported, each with the state that it had at the import.
///
/// The model's process reports them, and the server does not trust it: the number of files and the length of their paths are limited, and no file is
/// opened.
#[derive(Clone, Debug, Default)]
pub struct ImportedFiles {
    files: BTreeMap<PathBuf, FileState>,
    unfollowed: u64,
}

/// The state of the files when they were last examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportedState {
    /// Identifies the states of all files. Two equal values mean that nothing changed between them.
    pub hash: u64,
    /// Whether a file differs from the one that was imported. A file that is gone does not count, because the model could not be loaded without it.
    pub is_changed: bool,
}

impl ImportedFiles {
    /// Notes a file of `bytes` that was last modified this many nanoseconds after 1970. If several processes report it, the first report counts.
    pub fn note(&mut self, path: &Path, bytes: u64, modified_ns: i64) {
        if self.files.contains_key(path) {
            return;
        }
        let is_followed = path.is_absolute()
            && path.as_os_str().len() <= IMPORTED_PATH_BYTES_MAX
            && self.files.len() < IMPORTED_FILES_MAX;
        if is_followed {
            self.files.insert(path.to_owned(), FileState::new(bytes, modified_ns));
        } else {
            self.unfollowed = self.unfollowed.saturating_add(1);
        }
    }

    /// Notes that a process imported this many more files, which it did not report. Processes of the same model import the same files, so the largest number
    /// counts.
    pub fn note_unreported(&mut self, count: u64) {
        self.unfollowed = self.unfollowed.max(count);
    }

    /// The paths, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.keys().map(PathBuf::as_path)
    }

    /// The number of imported files whose changes are not followed.
    pub fn unfollowed(&self) -> u64 {
        self.unfollowed
    }

    /// Reads the metadata of the files.
    pub fn state(&self) -> ImportedState {
        let (mut hash, mut is_changed) = (DefaultHasher::new(), false);
        for (path, imported) in &self.files {
            let found = fs::metadata(path).ok().filter(fs::Metadata::is_file);
            let now = found.map(|found| FileState::of(&found));
            is_changed |= now.is_some_and(|now| now != *imported);
            (path, now).hash(&mut hash);
        }
        ImportedState { hash: hash.finish(), is_changed }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// A file in a folder of this name, and the report of a process that imported it.
    fn imported(name: &str) -> (PathBuf, ImportedFiles) {
        let folder = std::env::temp_dir().join(format!("nerite-imported-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.py");
        fs::write(&path, "x = 1").unwrap();
        let mut files = ImportedFiles::default();
        note(&mut files, &path);
        (path, files)
    }

    fn note(files: &mut ImportedFiles, path: &Path) {
        let found = fs::metadata(path).unwrap();
        files.note(path, found.len(), found.mtime() * 1_000_000_000 + found.mtime_nsec());
    }

    #[track_caller]
    fn check(name: &str, change: impl FnOnce(&Path), is_changed: bool, is_other: bool) {
        let (path, files) = imported(name);
        let before = files.state();
        assert!(!before.is_changed, "nothing changed yet");
        change(&path);
        let now = files.state();
        assert_eq!((now.is_changed, now.hash != before.hash), (is_changed, is_other), "{name}");
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_file_that_differs_from_the_imported_one_is_changed() {
        let touch = |path: &Path| {
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_modified(std::time::UNIX_EPOCH).unwrap();
        };
        let make_folder = |path: &Path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        };
        check("same", |_| {}, false, false);
        check("longer", |path| fs::write(path, "x = 10").unwrap(), true, true);
        check("touched", touch, true, true);
        check("removed", |path| fs::remove_file(path).unwrap(), false, true);
        check("folder", make_folder, false, true);
    }

    #[test]
    fn the_first_report_of_a_file_counts() {
        let (path, mut files) = imported("first");
        fs::write(&path, "x = 10").unwrap();
        note(&mut files, &path);
        assert!(files.state().is_changed, "an older process has the first state");
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn reports_are_limited() {
        let mut files = ImportedFiles::default();
        files.note(Path::new("relative.py"), 1, 1);
        files.note(&Path::new("/").join("x".repeat(IMPORTED_PATH_BYTES_MAX)), 1, 1);
        assert_eq!((files.paths().count(), files.unfollowed()), (0, 2));
        for at in 0..IMPORTED_FILES_MAX + 3 {
            files.note(Path::new(&format!("/nowhere/{at}.py")), 1, i64::MIN);
        }
        assert_eq!((files.paths().count(), files.unfollowed()), (IMPORTED_FILES_MAX, 5));
        files.note_unreported(4);
        assert_eq!(files.unfollowed(), 5);
        files.note_unreported(u64::MAX);
        files.note(Path::new("/one/more.py"), 1, 1);
        assert_eq!(files.unfollowed(), u64::MAX);
    }
}
