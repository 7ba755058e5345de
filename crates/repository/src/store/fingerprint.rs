//! Has a model's directory changed since it was loaded?

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::versions;
use crate::limits::{MODEL_DEPTH_MAX, MODEL_ENTRIES_MAX};

/// A hash of names, sizes and modification times of all files below a model's directory: one for each version, and one for the files that
/// versions share. If two fingerprints are equal, nothing has to be reloaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Configuration, labels, and all other files outside of the versions' directories.
    pub shared: u64,
    /// Each version's own files.
    pub versions: BTreeMap<i64, u64>,
}

impl Fingerprint {
    /// Whether nothing changed for one version.
    pub fn same_version(&self, other: &Fingerprint, version: i64) -> bool {
        self.shared == other.shared && self.versions.get(&version) == other.versions.get(&version)
    }

    /// Whether nothing changed for any of these versions.
    pub fn same_versions(&self, other: &Fingerprint, versions: &[i64]) -> bool {
        versions.iter().all(|&version| self.same_version(other, version))
    }

    /// The fingerprint of the current files. Links are followed, because their targets are part of the model.
    pub(super) fn of(directory: &Path) -> io::Result<Fingerprint> {
        let mut walk = Walk { entries_left: MODEL_ENTRIES_MAX };
        let mut shared = DefaultHasher::new();
        let mut fingerprint = Fingerprint::default();
        for name in names(directory)? {
            let path = directory.join(&name);
            match versions::version(&name) {
                Ok(version) if super::is_there(&path) => {
                    let mut own = DefaultHasher::new();
                    walk.fold(&path, 1, &mut own)?;
                    fingerprint.versions.insert(version, own.finish());
                }
                _ => {
                    name.hash(&mut shared);
                    walk.fold(&path, 1, &mut shared)?;
                }
            }
        }
        fingerprint.shared = shared.finish();
        Ok(fingerprint)
    }
}

/// A walk over files with a limit, so that it ends even if links form a cycle.
struct Walk {
    entries_left: usize,
}

impl Walk {
    fn fold(&mut self, path: &Path, depth: usize, hash: &mut DefaultHasher) -> io::Result<()> {
        self.entries_left = self.entries_left.checked_sub(1).ok_or_else(|| {
            io::Error::other(format!("more than {MODEL_ENTRIES_MAX} files and folders below the model's directory"))
        })?;
        let found = match fs::metadata(path) {
            Ok(found) => found,
            // A broken link, or a file that was removed meanwhile. Its name is in the hash already.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(cause) => return Err(cause),
        };
        if !found.is_dir() {
            (found.len(), found.mtime(), found.mtime_nsec()).hash(hash);
            return Ok(());
        }
        if depth > MODEL_DEPTH_MAX {
            return Err(io::Error::other(format!(
                "more than {MODEL_DEPTH_MAX} folders within folders: {}",
                path.display()
            )));
        }
        // The time of a folder is left out: the names of its entries say the same.
        for name in names(path)? {
            name.hash(hash);
            self.fold(&path.join(&name), depth + 1, hash)?;
        }
        hash.write_u8(0);
        Ok(())
    }
}

/// The names in a folder, sorted. Files that Python writes when it imports a model are skipped: they do not change the model.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "__pycache__" {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}
