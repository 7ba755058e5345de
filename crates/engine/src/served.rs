//! What is a model version that takes requests?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nerite_backend::{CostBound, InFlight, Job, ModelVersion};
use nerite_config::{ModelConfig, TensorSpec};
use nerite_repository::{Labels, ModelDir};
use nerite_request::report::StatisticsReport;
use nerite_request::{Code, Status};
use nerite_schedule::Rejection;

use crate::pool::Pool;
use crate::scheduling::{QueueLimits, Scheduling};
use crate::sequences::Sequences;
use crate::stats::Stats;

/// One version of a model with its instances. Whoever holds it may submit to it until it is retired.
pub struct Served {
    name: Arc<str>,
    version: i64,
    /// What its requests have in common. It is loaded as long as one of them is in flight.
    requests: Arc<ModelVersion>,
    config: Arc<ModelConfig>,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    labels: Arc<Labels>,
    stats: Arc<Stats>,
    /// There where the model has a sequence batcher.
    sequences: Option<Arc<Sequences>>,
    pool: Pool,
    is_retired: AtomicBool,
    /// Files that a load request brought are removed when the last request of the version has gone.
    _directory: ModelDir,
}

/// What a [`Served`] is made of.
pub(crate) struct Parts {
    pub name: String,
    pub version: i64,
    pub config: Arc<ModelConfig>,
    pub labels: Arc<Labels>,
    pub load_ns: u64,
    pub instances: Vec<Box<dyn nerite_backend::Instance>>,
    pub bound: CostBound,
    pub directory: ModelDir,
    pub queues: QueueLimits,
    pub sequences: Option<Sequences>,
}

impl Served {
    pub(crate) fn new(parts: Parts) -> Served {
        let Parts { name, version, config, labels, load_ns, instances, bound, directory, queues, sequences } = parts;
        let sequences = sequences.map(Arc::new);
        let stats = Arc::new(Stats::new(&name, version, load_ns, usize::try_from(config.max_batch_size).unwrap_or(0)));
        let scheduling = Scheduling::of(&config, instances.len(), queues);
        let pool_name = format!("{name}_{version}");
        let answer = Box::new(rejecting(&name, version, scheduling.requests_max, sequences.clone()));
        let requests = ModelVersion::new(name.as_str(), version.to_string(), Arc::clone(&stats) as _);
        let pool =
            Pool::new(&pool_name, instances, bound, scheduling, sequences.clone(), Arc::clone(&requests), answer);
        let (inputs, outputs) = (config.inputs(), config.outputs());
        Served {
            name: name.into(),
            version,
            requests,
            config,
            inputs,
            outputs,
            labels,
            stats,
            sequences,
            pool,
            is_retired: AtomicBool::new(false),
            _directory: directory,
        }
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version's number.
    pub fn version(&self) -> i64 {
        self.version
    }

    /// The configuration in force: the author's, completed and normalised.
    pub fn config(&self) -> &Arc<ModelConfig> {
        &self.config
    }

    /// What the model takes, in the order of the configuration.
    pub fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    /// What the model gives, in the order of the configuration.
    pub fn outputs(&self) -> &[TensorSpec] {
        &self.outputs
    }

    /// Labels of its classes.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Its statistics now.
    pub fn statistics(&self) -> StatisticsReport {
        self.stats.report(self.pool.waiting() as u64)
    }

    /// Whether it takes no more requests.
    pub fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Acquire)
    }

    /// One more request is in flight.
    pub(crate) fn begin(&self) -> InFlight {
        self.requests.begin()
    }

    /// Runs the job, now or as soon as an instance is free.
    pub(crate) fn submit(&self, job: Job) {
        match self.sequences.as_ref().map(|sequences| sequences.check(&job)) {
            Some(Err(refused)) => job.turn_away(refused),
            _ => self.pool.submit(job),
        }
    }

    /// Takes no more requests and returns when the last one has been answered.
    pub(crate) fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
        self.pool.close();
    }
}

/// Answers requests for that version that its scheduler rejects. Triton counts those nowhere that no queue took.
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
            job.turn_away(Status::unavailable(text));
        }
        Rejection::Full | Rejection::Overloaded => {
            let id = if job.id().is_empty() { "<id_unknown>" } else { job.id() };
            let mut text = format!("[request id: {id}] {}", rejection.sentence());
            if rejection == Rejection::Overloaded {
                text += &format!(
                    ": {requests_max} requests wait for model '{name}' version {version}; raise --queue-requests-max, or add instances"
                );
            }
            job.turn_away(Status::unavailable(text));
        }
        Rejection::MissingStart => {
            let refused = match &sequences {
                Some(sequences) => sequences.missing_start(&job),
                None => Status::invalid(rejection.sentence()),
            };
            job.turn_away(refused);
        }
        Rejection::TimedOut | Rejection::SequenceTimedOut => job.refuse(Status::unavailable(rejection.sentence())),
        Rejection::Cancelled => job.refuse(Status::new(Code::Cancelled, rejection.sentence())),
    }
}
