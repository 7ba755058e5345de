//! What is known of a model once its directory has been read?

use std::sync::Arc;

use nerite_config::ModelConfig;
use nerite_request::Status;

use super::{Fingerprint, Labels, ModelDir, Warning, labels};

/// A model as its directory, or a load request, describes it. Nothing of it is loaded.
#[derive(Clone, Debug)]
pub struct ModelSource {
    /// The model's name.
    pub model: String,
    /// Where its files are. A clone must live as long as the model is served.
    pub directory: ModelDir,
    /// The configuration: backend deduced, defaults filled, validated. Neither completed by the backend nor with its instance
    /// groups settled: both need the backend.
    pub config: Arc<ModelConfig>,
    /// Whether somebody wrote a configuration, as a file or in the request.
    pub config_given: bool,
    /// The versions to serve, ascending; empty if there is none to load.
    pub versions: Vec<i64>,
    /// Tells this state of the directory from others.
    pub fingerprint: Fingerprint,
    /// Whether the request brought the configuration or the files.
    pub overridden: bool,
    /// What the log should say about it.
    pub warnings: Vec<Warning>,
}

/// What the lifecycle needs to know of a source to decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The versions to serve, ascending.
    pub versions: Vec<i64>,
    /// Tells this state of the directory from others.
    pub fingerprint: Fingerprint,
    /// Whether the request brought the configuration or the files.
    pub overridden: bool,
    /// The models that an ensemble is made of, each once, in the order of its steps.
    pub needs: Vec<String>,
}

impl ModelSource {
    /// What the lifecycle decides by.
    pub fn facts(&self) -> Facts {
        Facts {
            versions: self.versions.clone(),
            fingerprint: self.fingerprint.clone(),
            overridden: self.overridden,
            needs: self.needs(),
        }
    }

    /// The models that must be up before this one: those an ensemble is made of.
    pub fn needs(&self) -> Vec<String> {
        let mut needs: Vec<String> = Vec::new();
        for step in self.config.ensemble_scheduling().map_or(&[][..], |ensemble| &ensemble.step) {
            if !needs.contains(&step.model_name) {
                needs.push(step.model_name.clone());
            }
        }
        needs
    }

    /// The labels that `config`, this source's own or its completed form, names. A failure fails the load.
    pub fn labels(&self, config: &ModelConfig) -> Result<Labels, Status> {
        labels::read(config, self.directory.path())
    }
}
