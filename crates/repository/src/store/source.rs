//! What is known about a model once its directory was read?

use std::sync::Arc;

use nerite_config::ModelConfig;
use nerite_request::Status;

use super::namespaces::SEPARATOR;
use super::{FileStates, Fingerprint, Labels, ModelDir, Warning, labels};

/// A model as its directory or a load request describes it. It is not loaded.
#[derive(Clone, Debug)]
pub struct ModelSource {
    /// The model's name.
    pub model: String,
    /// The server's name for it: its name, or with namespaces its repository and its name.
    pub identifier: String,
    /// The models that must be loaded before this one: those that the steps of an ensemble name, each once, and their identifiers.
    pub needs: Vec<(String, String)>,
    /// Where its files are. A clone must live as long as the model is served.
    pub directory: ModelDir,
    /// The configuration, with the backend deduced, defaults filled in, and validated. It is not completed and its instance groups are not resolved,
    /// because both need the backend.
    pub config: Arc<ModelConfig>,
    /// Whether there is a written configuration, in a file or in the request.
    pub config_given: bool,
    /// The versions to serve, ascending. Empty if there is none.
    pub versions: Vec<i64>,
    /// Identifies this state of the directory.
    pub fingerprint: Fingerprint,
    /// Identifies the state of its files within one load.
    pub file_states: FileStates,
    /// Whether the configuration or the files came with the request.
    pub overridden: bool,
    /// Warnings for the log.
    pub warnings: Vec<Warning>,
}

/// The facts of a source that the lifecycle needs for its decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The versions to serve, ascending.
    pub versions: Vec<i64>,
    /// Identifies this state of the directory.
    pub fingerprint: Fingerprint,
    /// Whether the files came with the request.
    pub has_sent_files: bool,
    /// Versions that are served with this configuration, which was completed when they were loaded.
    pub completed: Vec<i64>,
    /// Whether all versions are loaded, even those that are served already with the same files.
    pub anew: bool,
    /// The models that an ensemble is made of, each once, in the order of its steps.
    pub needs: Vec<String>,
}

impl ModelSource {
    /// Its repository, if models of several repositories may have the same name; otherwise empty.
    pub fn namespace(&self) -> &str {
        let namespace = self.identifier.strip_suffix(&*self.model);
        namespace.and_then(|namespace| namespace.strip_suffix(SEPARATOR)).unwrap_or_default()
    }

    /// The facts for the lifecycle.
    pub fn facts(&self) -> Facts {
        Facts {
            versions: self.versions.clone(),
            fingerprint: self.fingerprint.clone(),
            has_sent_files: self.directory.is_made(),
            completed: Vec::new(),
            anew: false,
            needs: self.needs(),
        }
    }

    /// The bytes of the files of the versions to serve.
    pub fn bytes(&self) -> u64 {
        let of = |version| self.fingerprint.bytes.get(version).copied().unwrap_or_default();
        self.versions.iter().map(of).fold(0, u64::saturating_add)
    }

    /// The identifiers of the models that must be loaded before this one: those that an ensemble is made of.
    pub fn needs(&self) -> Vec<String> {
        let mut needs: Vec<String> = Vec::new();
        for (_, need) in &self.needs {
            if !needs.contains(need) {
                needs.push(need.clone());
            }
        }
        needs
    }

    /// The labels that `config`, this source's own or its completed form, names. A failure fails the load.
    pub fn labels(&self, config: &ModelConfig) -> Result<Labels, Status> {
        labels::read(config, self.directory.path())
    }
}
