//! Where are a model's files, and how long do they exist?

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nerite_request::{PeerAccount, PeerCharge};
use tempfile::TempDir;

/// A model's directory. If it was made from the files of a request, it is removed when its last clone is dropped. So a served model keeps a clone.
#[derive(Clone, Debug)]
pub struct ModelDir {
    path: PathBuf,
    made: Option<Arc<TempDir>>,
    /// A client's charge for the configuration or the files that it sent.
    charge: Option<Arc<PeerCharge>>,
}

impl ModelDir {
    /// A directory of a repository.
    pub(crate) fn of_repository(path: PathBuf) -> ModelDir {
        ModelDir { path, made: None, charge: None }
    }

    /// A temporary directory for one load.
    pub(crate) fn made(folder: TempDir) -> ModelDir {
        ModelDir { path: folder.path().to_owned(), made: Some(Arc::new(folder)), charge: None }
    }

    /// The same directory, which keeps the charge of the load that it was read for.
    pub(crate) fn charged(self, charge: Option<Arc<PeerCharge>>) -> ModelDir {
        ModelDir { charge, ..self }
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of one version.
    pub fn version(&self, version: i64) -> PathBuf {
        self.path.join(version.to_string())
    }

    /// The account of the client that sent the configuration or the files. `None` if both are the repository's.
    pub fn payer(&self) -> Option<&PeerAccount> {
        self.charge.as_deref().map(PeerCharge::account)
    }

    /// Whether it was made from the files of a request.
    pub fn is_made(&self) -> bool {
        self.made.is_some()
    }
}
