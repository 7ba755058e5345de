//! What is a model version that takes requests?

use std::sync::Arc;

use nerite_backend::{CostBound, Job, Meter, now_ns};
use nerite_config::{ModelConfig, TensorSpec};
use nerite_repository::{Labels, ModelDir};
use nerite_request::report::StatisticsReport;
use nerite_request::{Code, Request, Status};
use nerite_schedule::Rejection;

use crate::pool::Pool;
use crate::scheduling::{QueueLimits, Scheduling};
use crate::stats::Stats;

/// One version of a model with its instances. Whoever holds it may submit to it until it is retired.
pub struct Served {
    name: Arc<str>,
    version: i64,
    version_text: Arc<str>,
    config: Arc<ModelConfig>,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    labels: Arc<Labels>,
    stats: Arc<Stats>,
    pool: Pool,
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
}

impl Served {
    pub(crate) fn new(parts: Parts) -> Served {
        let Parts { name, version, config, labels, load_ns, instances, bound, directory, queues } = parts;
        let stats = Arc::new(Stats::new(&name, version, load_ns));
        let scheduling = Scheduling::of(&config, queues);
        let pool_name = format!("{name}_{version}");
        let answer = Box::new(rejecting(&name, version, scheduling.requests_max));
        let pool = Pool::new(&pool_name, instances, bound, scheduling, Arc::clone(&stats) as _, answer);
        let version_text = version.to_string().into();
        let (inputs, outputs) = (config.inputs(), config.outputs());
        Served {
            name: name.into(),
            version,
            version_text,
            config,
            inputs,
            outputs,
            labels,
            stats,
            pool,
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

    /// Runs the request, now or as soon as an instance is free. The answer comes through the request's own reply.
    pub fn submit(&self, request: Request) {
        self.pool.submit(Job::new(request, Arc::clone(&self.name), Arc::clone(&self.version_text), now_ns()));
    }

    /// Takes no more requests and returns when the last one has been answered.
    pub(crate) fn retire(&self) {
        self.pool.close();
    }
}

/// Answers requests for that version that its scheduler rejects. Triton counts those nowhere that no queue took.
fn rejecting(
    name: &str,
    version: i64,
    requests_max: usize,
) -> impl Fn(Job, Rejection, &dyn Meter) + Send + Sync + use<> {
    let name = name.to_owned();
    move |job, rejection, meter| match rejection {
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
        // Triton counts it nowhere. No scheduler of the engine gives this reason yet.
        Rejection::MissingStart => job.turn_away(Status::invalid(rejection.sentence())),
        Rejection::TimedOut | Rejection::SequenceTimedOut => {
            job.refuse(Status::unavailable(rejection.sentence()), meter);
        }
        Rejection::Cancelled => job.refuse(Status::new(Code::Cancelled, rejection.sentence()), meter),
    }
}
