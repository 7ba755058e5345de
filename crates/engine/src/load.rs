//! How does a directory become a version that takes requests?

use std::sync::Arc;

use nerite_backend::{DeviceAccess, Instance, InstanceSpec, LoadContext, Model, Models, Runtime, Staged, now_ns};
use nerite_config::proto::model_instance_group::Kind;
use nerite_config::{
    HostFacts, ModelConfig, check_file_names, normalise, normalise_groups, validate, validate_groups, validate_tensors,
};
use nerite_memory::Staging;
use nerite_repository::ModelSource;
use nerite_request::Status;

use crate::runtimes::Runtimes;
use crate::scheduling::QueueLimits;
use crate::served::{Parts, Served};

/// What does not change from load to load.
pub struct Loader {
    /// The runtimes there are.
    pub runtimes: Runtimes,
    /// The accelerators there are.
    pub host: HostFacts,
    /// Processor cores this process may use.
    pub cores: usize,
    /// Whether backends complete configurations.
    pub auto_complete: bool,
    /// What bounds the queues.
    pub queues: QueueLimits,
}

impl Loader {
    /// Loads one version, all its instances included.
    pub fn load(&self, source: &ModelSource, version: i64, models: &Models) -> Result<Served, Status> {
        let start = now_ns();
        check_scheduling(&source.config)?;
        check_file_names(&source.config).map_err(|refused| Status::invalid(refused.to_string()))?;
        let runtime = self.runtimes.get(source.config.backend_name())?;
        let mut context = self.context(source, version, models);
        let config = self.settle(&*runtime, &mut context)?;
        let model = runtime.load(&context)?;
        let instances = make_instances(&*model, &config, self.runtimes.staging())?;
        let labels = Arc::new(source.labels(&config)?);
        Ok(Served::new(Parts {
            name: source.model.clone(),
            version,
            config,
            labels,
            load_ns: now_ns().saturating_sub(start),
            instances,
            bound: model.cost_bound(),
            // A directory that a load request brought lives as long as the model is served from it.
            directory: source.directory.clone(),
            queues: self.queues,
        }))
    }

    fn context(&self, source: &ModelSource, version: i64, models: &Models) -> LoadContext {
        LoadContext {
            model: source.model.clone(),
            version,
            model_dir: source.directory.path().to_owned(),
            version_dir: source.directory.version(version),
            config: Arc::clone(&source.config),
            settings: self.runtimes.settings(source.config.backend_name()),
            cores: self.cores,
            instances: 1,
            models: models.clone(),
        }
    }

    /// Completes, normalises and validates the configuration, and leaves it in the context.
    fn settle(&self, runtime: &dyn Runtime, context: &mut LoadContext) -> Result<Arc<ModelConfig>, Status> {
        let invalid = |e: nerite_config::ConfigError| Status::invalid(e.to_string());
        let completed =
            if self.auto_complete { runtime.complete(context)? } else { ModelConfig::clone(&context.config) };
        let config = normalise_groups(normalise(completed, &context.model), &[], &self.host);
        validate(&config).map_err(invalid)?;
        validate_tensors(&config).map_err(invalid)?;
        validate_groups(&config, &self.host).map_err(invalid)?;
        check_gpus(runtime, &config)?;
        context.instances = InstanceSpec::all(&config).len();
        context.config = Arc::new(config);
        Ok(Arc::clone(&context.config))
    }
}

/// Schedulers that are not there yet must not pretend to be: such a model would compute something else.
fn check_scheduling(config: &ModelConfig) -> Result<(), Status> {
    let kind = if config.sequence_batching().is_some() {
        "sequence_batching"
    } else if config.ensemble_scheduling().is_some() || config.platform == "ensemble" {
        "ensemble_scheduling"
    } else {
        return Ok(());
    };
    Err(Status::unsupported(format!(
        "model '{}' asks for {kind}, which this version of nerite does not have yet",
        config.name
    )))
}

fn make_instances(
    model: &dyn Model,
    config: &ModelConfig,
    staging: Option<&Arc<dyn Staging>>,
) -> Result<Vec<Box<dyn Instance>>, Status> {
    let make = |spec: InstanceSpec| {
        let instance = model.instance(&spec)?;
        Ok(match (staging, model.takes_device_memory(&spec)) {
            (None, _) | (_, DeviceAccess::Everywhere) => instance,
            (Some(staging), reach) => Box::new(Staged::over(instance, Arc::clone(staging), reach)),
        })
    };
    InstanceSpec::all(config).into_iter().map(make).collect()
}

/// A group on GPUs of a runtime that has none would compute elsewhere than its author asked.
fn check_gpus(runtime: &dyn Runtime, config: &ModelConfig) -> Result<(), Status> {
    let Some(group) = config.instance_group.iter().find(|group| group.kind() == Kind::Gpu) else { return Ok(()) };
    runtime.offers_gpus().map_err(|why| {
        Status::unsupported(format!(
            "instance group {} of model {} has kind KIND_GPU, but {why}, or use KIND_CPU",
            group.name, config.name
        ))
    })
}
