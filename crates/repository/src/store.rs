//! Which models and files are in the repositories?

mod bounded;
mod directory;
mod fingerprint;
mod labels;
mod listing;
mod namespaces;
mod protections;
mod read;
mod registered;
mod sent;
mod source;
mod versions;
mod warning;

use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use nerite_request::{Status, setting::LoadOptions};

use crate::phrase;

pub use directory::ModelDir;
pub(crate) use fingerprint::PYTHON_CACHE;
pub use fingerprint::{FileStates, Fingerprint};
pub use labels::{Labels, labels_bytes};
pub use listing::Listing;
use registered::Registered;
pub use source::{Facts, ModelSource};
pub use warning::Warning;

/// Where the models are, and how their directories are read.
#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    /// `--model-repository`, in the order given.
    pub repositories: Vec<PathBuf>,
    /// `--model-config-name`: `configs/{name}.pbtxt` is read if it exists. Empty for none.
    pub config_name: String,
    /// Whether a backend may be deduced and a configuration completed. `--disable-auto-complete-config` turns it off.
    pub auto_complete: bool,
    /// Whether a load request may contain files (`--allow-model-upload`). If it may not, a configuration in it may not name an environment either,
    /// because an environment is run as code.
    pub allow_upload: bool,
    /// `--model-namespacing`: models of different repositories may have the same name.
    pub namespacing: bool,
}

/// The repositories of a server. Only their paths are kept: each call reads the directories again.
#[derive(Clone, Debug)]
pub struct Store {
    options: StoreOptions,
    registered: Arc<RwLock<Registered>>,
}

/// A repository that cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No repository was named.
    #[error("--model-repository must be specified")]
    Unnamed,
    /// The path does not exist.
    #[error("failed to stat file {}{}", path.display(), bucket_cure(path))]
    Missing {
        /// The path as the operator wrote it.
        path: PathBuf,
    },
    /// The path exists but cannot be listed.
    #[error("failed to open directory {}: {cause}", path.display())]
    Unreadable {
        /// The path as the operator wrote it.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
}

impl StoreError {
    /// The error for a client, or for the last line of a server that does not start.
    pub fn status(&self) -> Status {
        match self {
            StoreError::Unnamed => Status::invalid(self.to_string()),
            StoreError::Missing { .. } | StoreError::Unreadable { .. } => Status::internal(self.to_string()),
        }
    }
}

/// A failure before the loading of a model starts. The text is for the log. Clients get [`PollError::status`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PollError {
    /// The name is not valid.
    #[error("{0}")]
    Name(Status),
    /// No repository has it.
    #[error("failed to poll model '{model}': model not found in any model repository.")]
    NotFound {
        /// The model.
        model: String,
    },
    /// Several repositories have it.
    #[error("failed to poll model '{model}': not unique across all model repositories")]
    Duplicate {
        /// The model.
        model: String,
    },
    /// Its directory or its configuration, or what the client sent in place of them, is not valid.
    #[error("Poll failed for model directory '{model}': {reason}")]
    Unusable {
        /// The model.
        model: String,
        /// What is wrong and where.
        reason: String,
    },
}

impl PollError {
    /// What is wrong with the model's directory, or else the whole text.
    pub fn reason(&self) -> String {
        match self {
            PollError::Unusable { reason, .. } => reason.clone(),
            PollError::Name(_) | PollError::NotFound { .. } | PollError::Duplicate { .. } => self.to_string(),
        }
    }

    /// The error for the client: Triton's text and the reason, which Triton writes only to its log.
    pub fn status(&self) -> Status {
        match self {
            PollError::Name(status) => status.clone(),
            PollError::NotFound { model } => phrase::poll_failed(model, "model not found in any model repository"),
            PollError::Duplicate { model } => phrase::poll_failed(model, "not unique across all model repositories"),
            PollError::Unusable { model, reason } => phrase::poll_failed(model, reason),
        }
    }
}

impl Store {
    /// A store of these repositories. [`Store::list`] tells whether they can be read.
    pub fn open(options: StoreOptions) -> Result<Store, StoreError> {
        if options.repositories.is_empty() {
            return Err(StoreError::Unnamed);
        }
        let registered = Arc::new(RwLock::new(Registered::of(&options.repositories)));
        Ok(Store { options, registered })
    }

    /// The models that the repositories have now.
    pub fn list(&self) -> Result<Listing, StoreError> {
        let mut listing = Listing::default();
        let registered = self.registered();
        for repository in registered.repositories() {
            listing.add(repository, self.options.namespacing)?;
        }
        registered.rename(&mut listing);
        Ok(listing)
    }

    /// The repositories that have files and no model. Somebody may have put a model's file there directly.
    pub fn warnings(&self) -> Vec<Warning> {
        let repositories = self.repositories().into_iter();
        repositories.filter(|repository| listing::has_only_files(repository)).map(read::no_model).collect()
    }

    /// The directories of the repositories, in the order given.
    pub(crate) fn repositories(&self) -> Vec<PathBuf> {
        self.registered().repositories().to_vec()
    }

    /// Reads a model, by its identifier, from its directory. `options` may replace its configuration or all its files.
    pub fn read(&self, model: &str, options: &LoadOptions) -> Result<ModelSource, PollError> {
        let name = self.name_of(model);
        check_name(name).map_err(PollError::Name)?;
        let mut source = if options.files.is_empty() {
            let path = self.find(model)?;
            let is_named = self.registered().has_name(model);
            read::from_repository(&self.options, name, path, options.config.as_deref(), is_named)
        } else {
            read::from_request(&self.options, name, options)
        }?;
        source.directory = source.directory.charged(options.charge.clone());
        model.clone_into(&mut source.identifier);
        source.needs = self.needs(model, &source.config);
        Ok(source)
    }

    /// Whether exactly one repository has a directory of that model.
    pub fn has(&self, model: &str) -> bool {
        check_name(self.name_of(model)).is_ok() && self.find(model).is_ok()
    }

    /// The options that the store was opened with.
    pub fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// The one directory of a model.
    fn find(&self, model: &str) -> Result<PathBuf, PollError> {
        if self.options.namespacing {
            let not_found = || PollError::NotFound { model: model.to_owned() };
            let (repository, name) = self.split(model).ok_or_else(not_found)?;
            return Some(repository.join(name)).filter(|path| is_there(path)).ok_or_else(not_found);
        }
        // `.` would be the repository itself.
        let found = if model == "." { Vec::new() } else { self.registered().directories(model) };
        let mut found = found.into_iter();
        match (found.next(), found.next()) {
            (Some(path), None) => Ok(path),
            (Some(_), Some(_)) => Err(PollError::Duplicate { model: model.to_owned() }),
            (None, _) => Err(PollError::NotFound { model: model.to_owned() }),
        }
    }
}

/// How a bucket is used, if the path names one. Triton reads those of these services itself.
pub fn bucket_cure(path: &Path) -> String {
    let shown = path.display().to_string();
    let is_bucket = ["s3://", "gs://", "as://"].iter().any(|scheme| shown.starts_with(scheme));
    if !is_bucket {
        return String::new();
    }
    format!(
        "; a model repository is a directory of this host: copy the bucket into one (as by `aws s3 sync {shown} models`, `gsutil rsync`, \
         `azcopy`), or mount it"
    )
}

/// Whether a model's directory exists, possibly as a link.
fn is_there(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_dir())
}

/// Refuses what cannot be a model's name.
pub fn check_name(model: &str) -> Result<(), Status> {
    if model.trim().is_empty() {
        return Err(phrase::empty_name());
    }
    // Each name is one component of a path, so only these two would leave the repository. As in Triton, blanks around `..` count for nothing.
    if model.trim() == ".." || model.contains('/') {
        return Err(phrase::traversal(model));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
