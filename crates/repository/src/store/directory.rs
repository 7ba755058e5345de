//! Where do a model's files lie, and until when?

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

/// A model's directory. One made from a request's files is removed when its last clone drops, so whoever serves the model keeps
/// one.
#[derive(Clone, Debug)]
pub struct ModelDir {
    path: PathBuf,
    made: Option<Arc<TempDir>>,
}

impl ModelDir {
    /// A directory of a repository.
    pub(crate) fn of_repository(path: PathBuf) -> ModelDir {
        ModelDir { path, made: None }
    }

    /// A directory made for one load.
    pub(crate) fn made(folder: TempDir) -> ModelDir {
        ModelDir { path: folder.path().to_owned(), made: Some(Arc::new(folder)) }
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of one version.
    pub fn version(&self, version: i64) -> PathBuf {
        self.path.join(version.to_string())
    }

    /// Whether it was made from a request's files.
    pub fn is_made(&self) -> bool {
        self.made.is_some()
    }
}
