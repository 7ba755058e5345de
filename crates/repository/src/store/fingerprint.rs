//! Has a model's directory changed since it was loaded?

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::versions;
use crate::limits::{MODEL_DEPTH_MAX, MODEL_ENTRIES_MAX};

/// Names, sizes and times of modification of all files below a model's directory, folded into one number for each version and
/// one for all that the versions share. Equal fingerprints: nothing to reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Configuration, labels and whatever else is not in a version's directory.
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

    /// The fingerprint of what lies there now. Links are followed: what they lead to is part of the model.
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

/// A walk that ends, whatever the links do.
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
            // A link to nowhere, or a file that went away meanwhile: its name was folded in already.
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
        // A folder's own time is left out: it says no more than the names in it.
        for name in names(path)? {
            name.hash(hash);
            self.fold(&path.join(&name), depth + 1, hash)?;
        }
        hash.write_u8(0);
        Ok(())
    }
}

/// The names in a folder, sorted. What Python leaves behind when it imports a model is no change of the model.
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
