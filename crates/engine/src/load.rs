//! How does a model's directory become a version that takes requests?

use std::sync::Arc;

use nerite_backend::{InstanceSpec, LoadContext, ModelFiles, Models, Runtime, now_ns};
use nerite_config::proto::ModelInstanceGroup;
use nerite_config::proto::model_instance_group::Kind;
use nerite_config::{
    HostFacts, ModelConfig, check_file_names, normalise, normalise_groups, validate, validate_groups, validate_tensors,
};
use nerite_repository::{Labels, ModelDir, ModelSource, labels_bytes};
use nerite_request::{Peer, PeerCharge, Status};

use crate::client_instances::{ClientInstances, CountedInstances};
use crate::instances::Maker;
use crate::limits::ENSEMBLE_INSTANCES_MAX;
use crate::progress::Progress;
use crate::rates::Claims;
use crate::run_on::ensemble_us;
use crate::runtimes::Runtimes;
use crate::scheduling::QueueLimits;
use crate::sequences::Sequences;
use crate::served::{Charges, Identity, Parts, Served, Wanted};
use crate::services::Services;
use crate::warmup::Warmup;

/// The platform of ensembles.
const ENSEMBLE: &str = "ensemble";

/// The parts of a load that are the same for all models.
pub struct Loader {
    /// The runtimes of this server.
    pub runtimes: Runtimes,
    /// The accelerators of this host.
    pub host: HostFacts,
    /// Processor cores this process may use.
    pub cores: usize,
    /// Whether backends complete configurations.
    pub auto_complete: bool,
    /// The limits of the queues.
    pub queues: QueueLimits,
    /// The parts that all models share.
    pub services: Services,
    /// The most instances of a model that are made at the same time.
    pub threads: usize,
    /// Bounds the instances of models whose configurations clients sent.
    pub client_instances: ClientInstances,
}

impl Loader {
    /// Loads one version, all its instances included. `sender` is the client that sent its configuration.
    pub(crate) fn load(
        &self,
        source: &ModelSource,
        version: i64,
        sender: Option<&Peer>,
        models: &Models,
        progress: &Progress,
    ) -> Result<Served, Status> {
        let start = now_ns();
        check_file_names(&source.config).map_err(|refused| Status::invalid(refused.to_string()))?;
        let runtime = self.runtime_of(&source.config, &source.directory, version)?;
        let mut context = self.context(source, version, models, progress);
        let settled = self.settle(&*runtime, &mut context);
        let settled =
            settled.and_then(|settled| Ok((self.services.policies.cores(&settled.config)?.map(Arc::new), settled)));
        let settled = settled
            .and_then(|settled| Ok((self.count_instances(source, version, sender, &settled.1.config)?, settled)));
        let (counted, (cores, Settled { config, preferred })) = settled.inspect_err(|_| runtime.give_up(&context))?;
        // Threads that all instances share run on the instances' cores, if all instances have the same cores.
        let model = match cores.as_ref().filter(|cores| cores.is_one()) {
            Some(cores) => cores.within(0, || runtime.load(&context))?,
            None => runtime.load(&context)?,
        };
        let bound = model.cost_bound();
        let (staging, threads) = (self.runtimes.staging().cloned(), self.threads);
        let maker = Maker {
            model,
            staging,
            threads,
            cores: cores.clone(),
            preferred: preferred.into(),
            config: Arc::clone(&config),
        };
        let specs = self.specs(&config);
        let mut instances = maker.make(&specs, progress)?;
        let claims = match &self.services.rates {
            Some(rates) => Claims::of(rates, &config)?,
            None => None,
        };
        let labels = Arc::new(source.labels(&config)?);
        let charges =
            Charges { labels: pay_for_labels(source, &labels)?.map(Arc::new), instances: counted.map(Arc::new) };
        let sequences = Sequences::load(&config, source.directory.path(), source.directory.payer())?;
        let runs_on_us = ensemble_us(&config, models);
        let warmup = Warmup::new(&config, &source.directory, sequences.as_ref(), progress);
        warmup.run(&specs, &mut instances)?;
        context.files.end(&context.model)?;
        Ok(Served::new(Parts {
            identity: Identity::of(source),
            version,
            config,
            labels,
            charges,
            load_ns: now_ns().saturating_sub(start),
            instances,
            specs,
            maker,
            bound,
            // If a load request contained the files, their directory is kept as long as the model is served from it.
            directory: source.directory.clone(),
            sequences,
            runs_on_us,
            queues: self.queues,
            services: self.services.clone(),
            claims,
            cores,
        }))
    }

    /// The runtime of one version: one in the model's own directory, or else the one that the configuration names. Files that a client sent must not
    /// contain a runtime, because its code would run in this process.
    pub(crate) fn runtime_of(
        &self,
        config: &ModelConfig,
        directory: &ModelDir,
        version: i64,
    ) -> Result<Arc<dyn Runtime>, Status> {
        let version_dir = directory.version(version);
        match self.runtimes.model_supplied(config, directory.path(), &version_dir) {
            Some(runtime) if directory.is_made() => Err(Status::unsupported(format!(
                "model '{}' was sent with a library of backend '{}', which would run in the server's process; put the model into the \
                 repository, or the library into --backend-directory",
                config.name,
                runtime.name()
            ))),
            Some(runtime) => Ok(runtime),
            // The configuration of an ensemble names no backend.
            None if config.platform == ENSEMBLE => self.runtimes.get(ENSEMBLE),
            None => self.runtimes.find(config, &[version_dir.as_path(), directory.path()]),
        }
    }

    /// Whether loads of this source leave its files as they are, by [`Runtime::leaves_files_unchanged`].
    pub(crate) fn leaves_files_unchanged(&self, source: &ModelSource) -> bool {
        let runtime = |version: &i64| self.runtime_of(&source.config, &source.directory, *version);
        source.versions.iter().all(|version| runtime(version).is_ok_and(|runtime| runtime.leaves_files_unchanged()))
    }

    /// Counts the instances that a client's configuration asks for. The threads of an ensemble are no instances of its configuration.
    fn count_instances(
        &self,
        source: &ModelSource,
        version: i64,
        sender: Option<&Peer>,
        config: &ModelConfig,
    ) -> Result<Option<CountedInstances>, Status> {
        let Some(sender) = sender else { return Ok(None) };
        let instances = if config.platform == ENSEMBLE { 1 } else { self.specs(config).len() };
        self.client_instances.count(sender, (&source.identifier, version), instances, now_ns())
    }

    /// The same version, with the instances and the version policy of this configuration. It serves requests meanwhile. After an error nothing has
    /// changed.
    pub(crate) fn resize(
        &self,
        served: &Served,
        source: &ModelSource,
        sender: Option<&Peer>,
        progress: &Progress,
    ) -> Result<Served, Status> {
        let requested = &source.config;
        let invalid = |e: nerite_config::ConfigError| Status::invalid(e.to_string());
        let mut config = ModelConfig::clone(served.config());
        config.instance_group.clone_from(&requested.instance_group);
        config.version_policy.clone_from(&requested.version_policy);
        let config = normalise_groups(normalise(config, served.name()), &served.maker().preferred, &self.host);
        validate_groups(&config, &self.host).map_err(invalid)?;
        check_gpus(&*self.runtime_of(&config, served.directory(), served.version())?, &config)?;
        let specs = self.specs(&config);
        let cores = self.services.policies.cores(&config)?.map(Arc::new);
        let counted = self.count_instances(source, served.version(), sender, &config)?.map(Arc::new);
        let wanted = Wanted { config: Arc::new(config), specs, cores, counted, directory: source.directory.clone() };
        served.resized(wanted, self.services.rates.as_ref(), progress)
    }

    /// The instances of a model. The instances of an ensemble only start steps, in parallel on as many threads as there are cores.
    fn specs(&self, config: &ModelConfig) -> Vec<InstanceSpec> {
        if config.platform != ENSEMBLE {
            return InstanceSpec::all(config);
        }
        let spec = |index| InstanceSpec { name: format!("{}_{index}", config.name), index, ..InstanceSpec::default() };
        (0..self.cores.clamp(1, ENSEMBLE_INSTANCES_MAX)).map(spec).collect()
    }

    fn context(&self, source: &ModelSource, version: i64, models: &Models, progress: &Progress) -> LoadContext {
        LoadContext {
            model: source.model.clone(),
            version,
            model_dir: source.directory.path().to_owned(),
            version_dir: source.directory.version(version),
            config: Arc::clone(&source.config),
            settings: self.runtimes.settings(source.config.backend_name()),
            host_policies: self.services.policies.0.clone(),
            cores: self.cores,
            instances: 1,
            // Only the parts of an ensemble are resolved here. Other models name the models that they call in each request.
            models: models.with_aliases(&source.needs).for_model(&source.identifier),
            files: ModelFiles::default(),
            is_sent: source.overridden,
            stop: progress.ending().stop().clone(),
        }
    }

    /// Completes, normalises and validates the configuration, and stores it in the context. As in Triton, the backend sees the instance groups
    /// complete, whether it completes the rest or not.
    fn settle(&self, runtime: &dyn Runtime, context: &mut LoadContext) -> Result<Settled, Status> {
        let invalid = |e: nerite_config::ConfigError| Status::invalid(e.to_string());
        let preferred = runtime.preferred_groups(context)?;
        let with_groups = normalise_groups(ModelConfig::clone(&context.config), &preferred, &self.host);
        validate_groups(&with_groups, &self.host).map_err(invalid)?;
        context.config = Arc::new(with_groups);
        // Whether an ensemble is decoupled follows from its steps, so its configuration is always completed.
        let is_completed = self.auto_complete || context.config.platform == ENSEMBLE;
        let completed = if is_completed { runtime.complete(context)? } else { ModelConfig::clone(&context.config) };
        let config = normalise_groups(normalise(completed, &context.model), &preferred, &self.host);
        validate(&config).map_err(invalid)?;
        validate_tensors(&config).map_err(invalid)?;
        validate_groups(&config, &self.host).map_err(invalid)?;
        check_gpus(runtime, &config)?;
        context.instances = self.specs(&config).len();
        context.config = Arc::new(config);
        Ok(Settled { config: Arc::clone(&context.config), preferred })
    }
}

/// The final configuration of a version, and what it was made with.
struct Settled {
    config: Arc<ModelConfig>,
    /// The instance groups that the backend prefers.
    preferred: Vec<ModelInstanceGroup>,
}

/// Charges the client that sent the configuration for the labels, which the server holds as long as the model is served.
fn pay_for_labels(source: &ModelSource, labels: &Labels) -> Result<Option<PeerCharge>, Status> {
    let Some(payer) = source.directory.payer() else { return Ok(None) };
    let bytes = labels_bytes(labels);
    let charge = payer.charge(bytes).map_err(|over| {
        Status::unavailable(format!(
            "the labels of model '{}' take {bytes} bytes: {over}; or name smaller files",
            source.model
        ))
    })?;
    Ok(Some(charge))
}

/// Refuses a group on GPUs if the runtime does not compute on GPUs.
fn check_gpus(runtime: &dyn Runtime, config: &ModelConfig) -> Result<(), Status> {
    let Some(group) = config.instance_group.iter().find(|group| group.kind() == Kind::Gpu) else { return Ok(()) };
    runtime.offers_gpus().map_err(|why| {
        Status::unsupported(format!(
            "instance group {} of model {} has kind KIND_GPU, but {why}, or use KIND_CPU",
            group.name, config.name
        ))
    })
}
