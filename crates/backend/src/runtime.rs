//! What does a runtime look like from outside?

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use nerite_config::ModelConfig;
use nerite_request::Status;

use crate::{Job, Meter};

/// A way to run models: ONNX Runtime, the embedded engine, identity. Named in `config.pbtxt` as `backend`.
pub trait Runtime: Send + Sync {
    /// The name in `config.pbtxt`.
    fn name(&self) -> &str;

    /// Which library at which version does the work, for the log and for `nerite doctor`.
    fn engine(&self) -> String;

    /// Completes a configuration from the model's own files, as Triton's auto-complete does. The default completes nothing.
    fn complete(&self, context: &LoadContext) -> Result<ModelConfig, Status> {
        Ok((*context.config).clone())
    }

    /// Reads one version of a model, checks it against its configuration and makes it ready for instances.
    fn load(&self, context: &LoadContext) -> Result<Arc<dyn Model>, Status>;
}

/// Where a model lies and what its author asked for.
#[derive(Clone, Debug)]
pub struct LoadContext {
    /// The model's name.
    pub model: String,
    /// The version being loaded.
    pub version: i64,
    /// The model's directory: labels, warmup data and the versions.
    pub model_dir: PathBuf,
    /// The version's directory: the model's files.
    pub version_dir: PathBuf,
    /// The configuration, normalised.
    pub config: Arc<ModelConfig>,
    /// What `--backend-config` says for this backend and for all (`default-max-batch-size` …).
    pub settings: BTreeMap<String, String>,
    /// Processor cores this process may use.
    pub cores: usize,
    /// Instances of this model that will run side by side.
    pub instances: usize,
}

/// One version of a model, ready to be run.
pub trait Model: Send + Sync {
    /// Makes one instance. Instances of one model run concurrently, each on one thread at a time.
    fn instance(&self, spec: &InstanceSpec) -> Result<Box<dyn Instance>, Status>;

    /// Whether instances take tensors where they are, on devices too, and write outputs there. For all others such tensors
    /// are carried to the host and back.
    fn takes_device_memory(&self) -> bool {
        false
    }
}

/// Which instance is to be made.
#[derive(Clone, Debug, Default)]
pub struct InstanceSpec {
    /// Its name: `{group}_{index}`.
    pub name: String,
    /// Position among all instances of the model, from 0.
    pub index: usize,
}

/// One concurrent execution of a model. Called by one thread at a time, not always the same.
pub trait Instance: Send {
    /// Answers every job of the batch, now or later.
    fn run(&mut self, batch: Batch);
}

/// Jobs that run together.
pub struct Batch {
    /// The jobs, in the order they came.
    pub jobs: Vec<Job>,
    /// Where the times of the execution are reported.
    pub meter: Arc<dyn Meter>,
}

impl Batch {
    /// Rows of all jobs.
    pub fn rows(&self) -> u64 {
        self.jobs.iter().map(|job| u64::from(job.rows())).sum()
    }
}
