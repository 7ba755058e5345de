//! What is a model version that takes requests?

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use nerite_backend::{CostBound, DeclaredOutputs, ImportedFiles, InFlight, Instance, InstanceSpec, Job, ModelVersion};
use nerite_config::proto::model_metrics::MetricControl;
use nerite_config::proto::model_metrics::metric_control::MetricOptions;
use nerite_config::{ModelConfig, TensorSpec};
use nerite_repository::{Labels, ModelDir, ModelSource};
use nerite_request::report::{LatencyReport, MemoryUsage, StatisticsReport};
use nerite_request::{Code, InputMemory, Peer, PeerCharge, Status};
use nerite_schedule::Rejection;

use crate::cached::Cached;
use crate::client_instances::CountedInstances;
use crate::declared_shapes::DeclaredShapes;
use crate::devices::Devices;
use crate::instances::{Change, Maker, Signature, change};
use crate::latencies::{FIRST_RESPONSE, FIRST_RESPONSE_MS, Latencies};
use crate::limits::LEAVING_INSTANCES_MAX;
use crate::lookups::RunJob;
use crate::members::{Member, Members, Traits};
use crate::policies::InstanceCores;
use crate::pool::{Answer, Pool};
use crate::progress::Progress;
use crate::rates::{Claimed, Claims, RateLimits};
use crate::readiness::{ReadinessAnswer, ReadinessChecks};
use crate::scheduling::{QueueLimits, Scheduling};
use crate::sequences::Sequences;
use crate::services::Services;
use crate::stats::Stats;
use crate::warmup::Warmup;

/// One version of a model with its instances. A holder of it may submit requests until it is retired.
pub struct Served {
    identity: Arc<Identity>,
    version: i64,
    /// The part that its requests share. The version stays loaded as long as one of them is in flight.
    requests: Arc<ModelVersion>,
    /// Counts the requests that were admitted and are not submitted yet.
    entering: Arc<ModelVersion>,
    config: Arc<ModelConfig>,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    /// `Some` if the configuration gives an output another shape than the model does.
    declared_shapes: Option<Arc<DeclaredShapes>>,
    labels: Arc<Labels>,
    /// What is charged to the client that sent the configuration.
    charges: Charges,
    stats: Arc<Stats>,
    /// `Some` if the model has a sequence batcher.
    sequences: Option<Arc<Sequences>>,
    /// `Some` if the response cache is used.
    cached: Option<Arc<Cached>>,
    pool: Arc<Pool>,
    instances: Members,
    readiness: Arc<ReadinessChecks>,
    maker: Maker,
    is_retired: Arc<AtomicBool>,
    /// Whether the timeout of a request bounds its run as well.
    timeout_ends_runs: bool,
    /// `Some` for an ensemble with sequences: how long their requests run on ([`crate::run_on`]).
    runs_on_us: Option<u64>,
    /// If a load request contained the files, they are removed when the last request of the version has ended.
    directory: ModelDir,
    /// The GPU that all its instances compute on; empty if there is none.
    gpu_uuid: String,
    devices: Devices,
}

/// The names of a model.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// The name that clients use.
    pub name: String,
    /// The name that the server uses. It is unique.
    pub identifier: String,
    /// The repository of the model, if models of several repositories may have the same name.
    pub namespace: String,
    /// The identifiers of the models that it is made of.
    pub needs: Vec<String>,
}

impl Identity {
    pub fn of(source: &ModelSource) -> Identity {
        Identity {
            name: source.model.clone(),
            identifier: source.identifier.clone(),
            namespace: source.namespace().to_owned(),
            needs: source.needs(),
        }
    }
}

/// Identifies a model version while its instances change. No other version has the same key as long as this lives. It does not keep the version
/// loaded.
#[derive(Clone, Debug)]
pub struct VersionKey(Weak<ModelVersion>);

impl VersionKey {
    /// Whether this is the key of that version.
    pub fn is_of(&self, served: &Served) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&served.requests))
    }
}

/// What is charged to the client that sent a configuration, as long as the model is served with it.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "the charges end when they are dropped")]
pub(crate) struct Charges {
    pub labels: Option<Arc<PeerCharge>>,
    pub instances: Option<Arc<CountedInstances>>,
}

/// What changes of a [`Served`] without a reload.
pub(crate) struct Wanted {
    pub config: Arc<ModelConfig>,
    pub specs: Vec<InstanceSpec>,
    pub cores: Option<Arc<InstanceCores>>,
    /// `Some` if a client sent the configuration.
    pub counted: Option<Arc<CountedInstances>>,
    pub directory: ModelDir,
}

/// The parts of a [`Served`].
pub(crate) struct Parts {
    pub identity: Identity,
    pub version: i64,
    pub config: Arc<ModelConfig>,
    pub labels: Arc<Labels>,
    pub charges: Charges,
    pub load_ns: u64,
    pub instances: Vec<Box<dyn Instance>>,
    pub specs: Vec<InstanceSpec>,
    pub maker: Maker,
    pub bound: CostBound,
    pub directory: ModelDir,
    pub queues: QueueLimits,
    pub sequences: Option<Sequences>,
    pub runs_on_us: Option<u64>,
    pub services: Services,
    pub claims: Option<Claims>,
    pub cores: Option<Arc<InstanceCores>>,
}

impl Served {
    pub(crate) fn new(parts: Parts) -> Served {
        let Parts {
            identity,
            version,
            config,
            labels,
            charges,
            load_ns,
            instances,
            specs,
            maker,
            bound,
            directory,
            queues,
            sequences,
            runs_on_us,
            services,
            claims,
            cores,
        } = parts;
        let name = identity.name.clone();
        let sequences = sequences.map(Arc::new);
        // Instances that are added or removed later use the same devices. For other devices the model is loaded again.
        let gpu_uuid = services.gpu_uuid(specs.iter().map(|spec| spec.device)).unwrap_or_default().to_owned();
        let devices = Devices::of(&specs, &services.gpu_uuids);
        let cache = services.cache.filter(|_| config.caches_responses());
        let latencies = Latencies::new(&services.latencies, config.caches_responses(), &first_response_ms(&config));
        let rows_max = usize::try_from(config.max_batch_size).unwrap_or(0);
        let stats = Stats::new(&name, version, load_ns, rows_max, latencies);
        let stats = Arc::new(if devices.count() > 0 { stats.with_devices(devices.count()) } else { stats });
        let instances = devices.counting(instances, &specs, &stats);
        let scheduling = Scheduling { claims, cores, ..Scheduling::of(&config, instances.len(), queues) };
        let cached =
            cache.map(|cache| Arc::new(Cached::new(cache, &name, Arc::clone(&stats), scheduling.requests_max)));
        let pool_name = format!("{name}_{version}");
        let traits = Traits::all(Signature::all(&config, &specs), &instances);
        let members = Members::new(Member::all(traits, 0..instances.len()).collect());
        let answer = Box::new(rejecting(&name, version, scheduling.requests_max, sequences.clone()));
        let (inputs, outputs, declared) = (config.inputs(), config.outputs(), DeclaredOutputs::of(&config));
        let requests = ModelVersion::declaring(declared, name.as_str(), version.to_string(), Arc::clone(&stats) as _);
        let pool =
            Pool::new(&pool_name, instances, bound, scheduling, sequences.clone(), Arc::clone(&requests), answer);
        let declared_shapes = DeclaredShapes::of(&config).map(Arc::new);
        let timeout_ends_runs = config.timeout_ends_runs().unwrap_or_default();
        Served {
            identity: Arc::new(identity),
            version,
            requests,
            entering: ModelVersion::unmetered(""),
            config,
            inputs,
            outputs,
            declared_shapes,
            labels,
            charges,
            stats,
            sequences,
            cached,
            pool: Arc::new(pool),
            instances: members,
            readiness: ReadinessChecks::new(&name),
            maker,
            is_retired: Arc::default(),
            timeout_ends_runs,
            runs_on_us,
            directory,
            gpu_uuid,
            devices,
        }
    }

    /// The same version with this configuration and these instances. Instances that are in both configurations stay. Others are added or removed.
    /// This does not wait for the runs and the sequences of removed instances. After an error nothing has changed.
    pub(crate) fn resized(
        &self,
        wanted: Wanted,
        rates: Option<&Arc<RateLimits>>,
        progress: &Progress,
    ) -> Result<Served, Status> {
        let Wanted { config, specs, cores, counted, directory } = wanted;
        let signatures = Signature::all(&config, &specs);
        let present: Vec<Signature> =
            self.instances.list().iter().map(|member| member.traits.signature.clone()).collect();
        let Change { stay, go, come: added } = change(&present, &signatures);
        let come: Vec<InstanceSpec> = added.iter().filter_map(|at| specs.get(*at).cloned()).collect();
        self.check_leaving(come.len())?;
        let claimed = rates.map_or_else(|| Ok(Vec::new()), |rates| Claimed::of(rates, &config, &added))?;
        let maker = Maker { cores: cores.clone(), config: Arc::clone(&config), ..self.maker.clone() };
        let mut made = maker.make(&come, progress)?;
        let sequences = self.sequences.as_deref();
        let warmup = Warmup::new(&config, &self.directory, sequences, progress);
        warmup.run(&come, &mut made)?;
        log::info!(
            "model '{}' version {}: {} instances stay, {} come, {} go",
            self.name(),
            self.version,
            stay.len(),
            come.len(),
            go.len()
        );
        let cores = come.iter().map(|spec| cores.as_ref().and_then(|cores| cores.of(spec.index)));
        let made = self.devices.counting(made, &come, &self.stats);
        let signatures = added.iter().filter_map(|at| signatures.get(*at).cloned()).collect();
        let added = Traits::all(signatures, &made);
        let numbers = self.pool.add(made, cores.collect(), claimed);
        let of = |places: &[usize]| -> Vec<Member> {
            places.iter().filter_map(|at| self.instances.list().get(*at).cloned()).collect()
        };
        let leaving: Vec<usize> = of(&go).into_iter().map(|member| member.number).collect();
        self.pool.remove(&leaving);
        let mut instances = of(&stay);
        instances.extend(Member::all(added, numbers));
        Ok(Served {
            identity: Arc::clone(&self.identity),
            version: self.version,
            requests: Arc::clone(&self.requests),
            entering: Arc::clone(&self.entering),
            config,
            inputs: self.inputs.clone(),
            outputs: self.outputs.clone(),
            declared_shapes: self.declared_shapes.clone(),
            labels: Arc::clone(&self.labels),
            charges: Charges { instances: counted, ..self.charges.clone() },
            stats: Arc::clone(&self.stats),
            sequences: self.sequences.clone(),
            cached: self.cached.clone(),
            pool: Arc::clone(&self.pool),
            instances: Members::new(instances),
            readiness: Arc::clone(&self.readiness),
            maker,
            is_retired: Arc::clone(&self.is_retired),
            timeout_ends_runs: self.timeout_ends_runs,
            runs_on_us: self.runs_on_us,
            directory,
            gpu_uuid: self.gpu_uuid.clone(),
            devices: self.devices.clone(),
        })
    }

    /// Refuses more instances while too many removed ones still run or have sequences.
    fn check_leaving(&self, come: usize) -> Result<(), Status> {
        let leaving = self.pool.leaving();
        if come == 0 || leaving <= LEAVING_INSTANCES_MAX {
            return Ok(());
        }
        Err(Status::unavailable(format!(
            "{leaving} instances of model '{}' that were taken away still run or have sequences, at most {LEAVING_INSTANCES_MAX} may while others come; \
             load it again when they have ended",
            self.name()
        )))
    }

    /// Returns when the instances that were removed are gone, except those with sequences.
    pub(crate) fn wait_for_removed(&self) {
        self.pool.wait_for_removed();
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.identity.name
    }

    /// The server's unique name of the model.
    pub fn identifier(&self) -> &str {
        &self.identity.identifier
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The factory of its instances.
    pub(crate) fn maker(&self) -> &Maker {
        &self.maker
    }

    /// The version's number.
    pub fn version(&self) -> i64 {
        self.version
    }

    /// Where its files are.
    pub(crate) fn directory(&self) -> &ModelDir {
        &self.directory
    }

    /// Its key.
    pub fn key(&self) -> VersionKey {
        VersionKey(Arc::downgrade(&self.requests))
    }

    /// The configuration in force: the author's, completed and normalised.
    pub fn config(&self) -> &Arc<ModelConfig> {
        &self.config
    }

    /// The inputs of the model, in the order of the configuration.
    pub fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    /// The outputs of the model, in the order of the configuration.
    pub fn outputs(&self) -> &[TensorSpec] {
        &self.outputs
    }

    /// The shapes that its outputs get on their way to whoever asked. `None` if they stay as they are.
    pub fn declared_shapes(&self) -> Option<&Arc<DeclaredShapes>> {
        self.declared_shapes.as_ref()
    }

    /// Labels of its classes.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// The same, for a caller that keeps them longer than the version.
    pub(crate) fn all_labels(&self) -> &Arc<Labels> {
        &self.labels
    }

    /// The files outside the model's directory that it imported, as far as they are known.
    pub(crate) fn imported_files(&self) -> ImportedFiles {
        self.maker.model.imported_files()
    }

    /// The memory of the model and its instances now, as far as it is known. It may have to be read from the kernel for each process.
    pub fn memory_usage(&self) -> Vec<MemoryUsage> {
        self.maker.model.memory_usage()
    }

    /// Its statistics now, without its memory.
    pub fn statistics(&self) -> StatisticsReport {
        let lookups = self.cached.as_ref().map_or(0, |cached| cached.waiting());
        let report = self.stats.report((self.pool.waiting() + lookups) as u64);
        let gpu_uuid = self.gpu_uuid.clone();
        let mut report = StatisticsReport { namespace: self.identity.namespace.clone(), gpu_uuid, ..report };
        self.devices.name(&mut report);
        report
    }

    /// The distribution of its latencies, as far as it is measured: for each part of [`StatisticsReport::by_device`], or one.
    pub fn latencies(&self) -> Vec<LatencyReport> {
        self.stats.latencies()
    }

    /// Checks whether its instances are ready. The version is ready if all of them are. `None` if they always are.
    pub fn check_readiness(&self) -> Option<ReadinessAnswer> {
        let checks: Vec<_> =
            self.instances.list().iter().filter_map(|member| member.traits.readiness.clone()).collect();
        (!checks.is_empty()).then(|| self.readiness.check(checks, self.processes()))
    }

    /// The input memory of the instance that a later request should run on.
    pub(crate) fn input_memory(&self) -> Option<Arc<dyn InputMemory>> {
        self.instances.input_memory(|| self.pool.idle())
    }

    /// The reason why it cannot take requests: the process of an instance has ended, and no other one runs yet. The instances are not called for
    /// this.
    pub fn fault(&self) -> Option<Status> {
        self.instances.list().iter().find_map(|member| member.traits.readiness.as_ref()?.fault())
    }

    /// How its outputs contradict its configuration, if a response showed that.
    pub fn contradiction(&self) -> Option<&str> {
        self.requests.declared().contradiction()
    }

    /// Whether it was ready at the last check, and its processes run now.
    pub fn was_ready(&self) -> bool {
        self.readiness.last(self.processes()).is_none() && self.fault().is_none()
    }

    /// How often processes of its instances were started anew after their death. 0 if the model runs in the server's process.
    pub fn restarts(&self) -> u64 {
        self.maker.model.restarts()
    }

    /// How many processes its instances have had.
    fn processes(&self) -> u64 {
        let each = |member: &Member| member.traits.readiness.as_ref().map_or(0, |readiness| readiness.processes());
        self.instances.list().iter().map(each).sum()
    }

    /// Whether the timeout of a request bounds its run as well.
    pub(crate) fn timeout_ends_runs(&self) -> bool {
        self.timeout_ends_runs
    }

    /// How long requests of sequences run on in this ensemble. `None` for other models.
    pub(crate) fn runs_on_us(&self) -> Option<u64> {
        self.runs_on_us
    }

    /// Whether it takes no more requests.
    pub fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::SeqCst)
    }

    /// Counts one more request that is admitted and not submitted yet.
    pub(crate) fn enter(&self) -> InFlight {
        self.entering.begin()
    }

    /// Requests in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.requests.in_flight()
    }

    /// Counts one more request in flight.
    pub(crate) fn begin(&self) -> InFlight {
        self.requests.begin()
    }

    /// Whether its requests are looked up in the response cache.
    pub(crate) fn is_cached(&self) -> bool {
        self.cached.is_some()
    }

    /// Whether its requests leave states that are kept, here or in the models that it is made of.
    pub fn leaves_states(&self) -> bool {
        self.sequences.as_ref().is_some_and(|sequences| sequences.has_states()) || self.config.is_ensemble()
    }

    /// Answers the job from the response cache, or runs it. `client` is `None` if the client is not known.
    pub(crate) fn submit(self: &Arc<Self>, job: Job, client: Option<&Peer>) {
        match &self.cached {
            Some(cached) => {
                let model: Arc<dyn RunJob> = Arc::<Self>::clone(self);
                cached.submit(&model, job, client);
            }
            None => self.run(job),
        }
    }

    /// Takes no more requests and returns when the last one has been answered.
    pub(crate) fn retire(&self) {
        self.is_retired.store(true, Ordering::SeqCst);
        // Admitted requests reach the scheduler first: a scheduler that has stopped would reject them.
        self.entering.wait();
        // So do requests that are being looked up in the response cache.
        if let Some(cached) = &self.cached {
            cached.wait();
        }
        self.pool.close();
    }
}

impl RunJob for Served {
    fn reject(&self, job: Job, rejection: Rejection) {
        self.pool.reject(job, rejection);
    }

    fn keeps_order(&self) -> bool {
        self.pool.keeps_order()
    }

    fn answer_in_turn(&self, job: Job, answer: Answer) -> Option<Job> {
        self.pool.answer_in_turn(job, answer)
    }

    fn run(&self, mut job: Job) {
        if let Some(sequences) = &self.sequences {
            sequences.begin(&mut job);
        }
        if let Some(Err(refused)) = self.sequences.as_ref().map(|sequences| sequences.check(&job)) {
            return job.reject_unqueued(refused);
        }
        let prefers = self.instances.preferred_by(&job);
        self.pool.submit(job, prefers);
    }
}

/// The bounds of the times to the first response, from the model's author or from Triton.
fn first_response_ms(config: &ModelConfig) -> Vec<f64> {
    let controls = config.model_metrics.iter().flat_map(|metrics| &metrics.metric_control);
    let of_first = |control: &MetricControl| {
        let family = control.metric_identifier.as_ref().map(|identifier| identifier.family.as_str());
        match &control.metric_options {
            Some(MetricOptions::HistogramOptions(options)) if family == Some(FIRST_RESPONSE) => {
                Some(options.buckets.clone())
            }
            _ => None,
        }
    };
    controls.rev().find_map(of_first).unwrap_or_else(|| FIRST_RESPONSE_MS.to_vec())
}

/// Answers requests that the scheduler of that version rejects. As in Triton, a request that no queue accepted is not counted.
fn rejecting(
    name: &str,
    version: i64,
    requests_max: usize,
    sequences: Option<Arc<Sequences>>,
) -> impl Fn(Job, Rejection) + Send + Sync + use<> {
    let name = name.to_owned();
    move |job, rejection| match rejection {
        Rejection::Stopping => {
            let text = format!("Request for unknown model: '{name}' version {version} is not at ready state");
            job.reject_unqueued(Status::unavailable(text));
        }
        Rejection::Full | Rejection::Overloaded => {
            let id = if job.id().is_empty() { "<id_unknown>" } else { job.id() };
            let mut text = format!("[request id: {id}] {}", rejection.sentence());
            if rejection == Rejection::Overloaded {
                text += &format!(
                    ": {requests_max} requests may wait for model '{name}' version {version}, and one client has three quarters of the places that \
                     others leave; raise --queue-requests-max, or add instances"
                );
            }
            job.reject_unqueued(Status::unavailable(text));
        }
        Rejection::MissingStart => {
            let refused = match &sequences {
                Some(sequences) => sequences.missing_start(&job),
                None => Status::invalid(rejection.sentence()),
            };
            job.reject_unqueued(refused);
        }
        Rejection::RunEnded => job.refuse(Status::internal(rejection.sentence())),
        Rejection::TimedOut | Rejection::SequenceTimedOut => job.refuse(Status::unavailable(rejection.sentence())),
        Rejection::Cancelled => {
            // If its own client has not gone, another request of its sequence was cancelled.
            let over = sequences.as_ref().filter(|_| !job.is_cancelled()).map(|sequences| sequences.over_for(&job));
            job.refuse(over.unwrap_or_else(|| Status::new(Code::Cancelled, rejection.sentence())));
        }
    }
}
