//! Which models are in the repositories?

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{StoreError, check_name, namespaces};

/// The sub-directories of all repositories: each model, by its identifier, with its directories. Without namespaces, a model has several directories
/// if it is in several repositories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    models: BTreeMap<String, Vec<PathBuf>>,
}

impl Listing {
    /// The listing of these (model, repository) pairs.
    pub fn of<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Listing {
        let mut listing = Listing::default();
        for (model, repository) in pairs {
            listing.models.entry(model.to_owned()).or_default().push(Path::new(repository).join(model));
        }
        listing
    }

    /// Every model by its identifier, with its directories.
    pub fn models(&self) -> impl Iterator<Item = (&str, &[PathBuf])> {
        self.models.iter().map(|(model, places)| (model.as_str(), places.as_slice()))
    }

    /// The directories of a model.
    pub fn places(&self, model: &str) -> &[PathBuf] {
        self.models.get(model).map_or(&[], Vec::as_slice)
    }

    /// Removes the directories for which `is_so` is true.
    pub(super) fn drop_places(&mut self, is_so: impl Fn(&Path) -> bool) {
        for places in self.models.values_mut() {
            places.retain(|path| !is_so(path));
        }
        self.models.retain(|_, places| !places.is_empty());
    }

    /// Sets this directory as the only one of a model.
    pub(super) fn put(&mut self, model: &str, directory: PathBuf) {
        self.models.insert(model.to_owned(), vec![directory]);
    }

    /// Adds the sub-directories of one repository, including links to directories. These names are skipped: names that a client cannot
    /// request, names that are not UTF-8, and the names that Kubernetes gives to its own entries of a mounted ConfigMap.
    pub(super) fn add(&mut self, repository: &Path, namespacing: bool) -> Result<(), StoreError> {
        let unreadable = |cause: std::io::Error| match cause.kind() {
            ErrorKind::NotFound => StoreError::Missing { path: repository.to_owned() },
            _ => StoreError::Unreadable { path: repository.to_owned(), cause },
        };
        for entry in fs::read_dir(repository).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = entry.path();
            if check_name(&name).is_ok() && !is_made_by_kubernetes(&name) && super::is_there(&path) {
                let model = if namespacing { namespaces::identifier(repository, &name) } else { name };
                self.models.entry(model).or_default().push(path);
            }
        }
        Ok(())
    }
}

/// Whether a directory has files and no sub-directories. Hidden entries do not count.
pub(super) fn has_only_files(directory: &Path) -> bool {
    let Ok(entries) = fs::read_dir(directory) else { return false };
    let shown = entries.flatten().filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    let mut are_files = shown.map(|entry| !super::is_there(&entry.path())).peekable();
    are_files.peek().is_some() && are_files.all(|is_file| is_file)
}

/// Whether it is the `..data` link of a mounted ConfigMap, or the `..2026_11_23_…` directory behind it.
fn is_made_by_kubernetes(name: &str) -> bool {
    name.strip_prefix("..").is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_alphanumeric()))
}
