//! Has a model's directory changed since it was loaded?

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::mem;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nerite_config::proto::ModelInstanceGroup;
use nerite_config::{ModelConfig, to_json};

use super::versions;
use crate::limits::{MODEL_DEPTH_MAX, MODEL_ENTRIES_MAX};

/// The configuration file of a model.
pub(super) const CONFIG_FILE: &str = "config.pbtxt";
/// Where the configurations of `--model-config-name` are.
pub(super) const CONFIG_FOLDER: &str = "configs";

/// The folder that Python writes when it imports a module.
pub(crate) const PYTHON_CACHE: &str = "__pycache__";

/// A hash of names, sizes and modification times of all files below a model's directory: one for each version, and one for the files that
/// versions share. The configuration counts by its content, and not as a file. If two fingerprints are equal, nothing has to be reloaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Labels, and all other files outside of the versions' directories, except configurations.
    pub shared: u64,
    /// The configuration, except what `served` covers.
    pub config: u64,
    /// The part that can change without a reload: how many instances there are, and which versions are served.
    pub served: u64,
    /// Each version's own files.
    pub versions: BTreeMap<i64, u64>,
    /// Their bytes.
    pub bytes: BTreeMap<i64, u64>,
}

/// A hash of which files lie below a model's directory, and when each was last changed in any way. Two equal values within one load mean that nobody
/// touched them, even if a file's length and its time of modification were kept. It is not part of the fingerprint, because the rights of a file, its
/// links and its number do not change the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileStates(u64);

impl Fingerprint {
    /// Whether nothing changed for one version that would need a reload.
    pub fn same_version(&self, other: &Fingerprint, version: i64) -> bool {
        self.config == other.config && self.same_files(other, version)
    }

    /// Whether no file of one version changed that would need a reload.
    pub(crate) fn same_files(&self, other: &Fingerprint, version: i64) -> bool {
        self.shared == other.shared && self.versions.get(&version) == other.versions.get(&version)
    }

    /// Whether nothing changed for any of these versions.
    pub fn same_versions(&self, other: &Fingerprint, versions: &[i64]) -> bool {
        versions.iter().all(|&version| self.same_version(other, version))
    }

    /// Whether this is the fingerprint of that configuration, except the part that can change without a reload.
    pub fn is_of(&self, config: &ModelConfig) -> bool {
        self.config == Fingerprint::default().with_config(config).config
    }

    /// Adds this configuration to the fingerprint.
    pub(super) fn with_config(self, config: &ModelConfig) -> Fingerprint {
        let mut rest = config.clone();
        let policy = rest.version_policy.take();
        let groups = mem::take(&mut rest.instance_group);
        let mut config = DefaultHasher::new();
        // An instance that shares resources waits for them in another way.
        let needs = |group: &ModelInstanceGroup| {
            group.rate_limiter.as_ref().is_some_and(|limiter| !limiter.resources.is_empty())
        };
        groups.iter().any(needs).hash(&mut config);
        to_json(&rest).hash(&mut config);
        // A model is loaded for the devices that its instances are on, and for their cores.
        let mut devices: Vec<_> =
            groups.iter().map(|group| (group.kind, &group.gpus, group.passive, &group.host_policy)).collect();
        devices.sort_unstable();
        devices.dedup();
        devices.hash(&mut config);
        let served = ModelConfig { instance_group: groups.clone(), version_policy: policy, ..ModelConfig::default() };
        let mut hash = DefaultHasher::new();
        to_json(&served).hash(&mut hash);
        Fingerprint { config: config.finish(), served: hash.finish(), ..self }
    }

    /// The fingerprint of the current files, without their configuration, and their states. Links are followed, because their targets are part of the
    /// model.
    pub(super) fn of(directory: &Path) -> io::Result<(Fingerprint, FileStates)> {
        let mut walk = Walk { entries_left: MODEL_ENTRIES_MAX, bytes: 0, states: DefaultHasher::new() };
        let mut shared = DefaultHasher::new();
        let mut fingerprint = Fingerprint::default();
        for name in names(directory)? {
            let path = directory.join(&name);
            match versions::version(&name) {
                Ok(version) if super::is_there(&path) => {
                    let mut own = DefaultHasher::new();
                    let before = walk.bytes;
                    walk.fold(&path, 1, &mut own)?;
                    fingerprint.bytes.insert(version, walk.bytes - before);
                    fingerprint.versions.insert(version, own.finish());
                }
                _ if name == CONFIG_FILE || name == CONFIG_FOLDER => {}
                _ => {
                    name.hash(&mut shared);
                    walk.fold(&path, 1, &mut shared)?;
                }
            }
        }
        fingerprint.shared = shared.finish();
        Ok((fingerprint, FileStates(walk.states.finish())))
    }
}

/// A walk over files with a limit, so that it ends even if links form a cycle.
struct Walk {
    entries_left: usize,
    /// Bytes of the files so far.
    bytes: u64,
    /// The states of the files so far.
    states: DefaultHasher,
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
            self.bytes = self.bytes.saturating_add(found.len());
            (found.len(), found.mtime(), found.mtime_nsec()).hash(hash);
            // Only regular files count, because each read changes the state of a pipe.
            if found.is_file() {
                (found.dev(), found.ino(), found.ctime(), found.ctime_nsec()).hash(&mut self.states);
            }
            return Ok(());
        }
        if depth > MODEL_DEPTH_MAX {
            return Err(io::Error::other(format!(
                "more than {MODEL_DEPTH_MAX} folders within folders: {}",
                path.display()
            )));
        }
        // The time of a folder is left out, because the names of its entries show the same changes.
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
        if name != PYTHON_CACHE {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}
