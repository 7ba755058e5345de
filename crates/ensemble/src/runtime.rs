//! How is an ensemble loaded?

use std::sync::Arc;

use nerite_backend::{Batch, CostBound, DeviceAccess, Instance, InstanceSpec, LoadContext, Model, Models, Runtime};
use nerite_config::ModelConfig;
use nerite_config::proto::ModelTransactionPolicy;
use nerite_request::{Code, Status};

use crate::check::check;
use crate::plan::{Plan, step_version};
use crate::run::Run;

/// The runtime of ensembles. It has no library: the models of the steps compute.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ensemble;

impl Runtime for Ensemble {
    fn name(&self) -> &'static str {
        "ensemble"
    }

    fn engine(&self) -> String {
        "this server's own models".to_owned()
    }

    fn leaves_files_unchanged(&self) -> bool {
        true
    }

    /// An ensemble is decoupled if one of its steps is, whatever its configuration says.
    fn complete(&self, context: &LoadContext) -> Result<ModelConfig, Status> {
        let decoupled = members(&context.config, &context.models)?.iter().any(|member| member.decoupled());
        let policy = ModelTransactionPolicy { decoupled };
        Ok(ModelConfig { model_transaction_policy: Some(policy), ..ModelConfig::clone(&context.config) })
    }

    fn check_models(&self, config: &ModelConfig, models: &Models) -> Result<(), Status> {
        check(config, &members(config, models)?)
    }

    fn load(&self, context: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        let members = members(&context.config, &context.models)?;
        let plan = Arc::new(Plan::new(&context.config, &members));
        Ok(Arc::new(EnsembleModel { plan, name: context.model.as_str().into(), models: context.models.clone() }))
    }
}

/// The configurations of the models of all steps, in the order of the steps.
fn members(config: &ModelConfig, models: &Models) -> Result<Vec<Arc<ModelConfig>>, Status> {
    let steps = config.ensemble_scheduling().map_or(&[][..], |ensemble| &ensemble.step);
    steps.iter().map(|step| models.config(&step.model_name, step_version(step))).collect()
}

struct EnsembleModel {
    plan: Arc<Plan>,
    name: Arc<str>,
    models: Models,
}

impl Model for EnsembleModel {
    fn cost_bound(&self) -> CostBound {
        CostBound::Unknown
    }

    fn instance(&self, _: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        let (plan, name, models) = (Arc::clone(&self.plan), Arc::clone(&self.name), self.models.clone());
        Ok(Box::new(EnsembleInstance { plan, name, models }))
    }

    /// It reads no tensor itself.
    fn takes_device_memory(&self, _: &InstanceSpec) -> DeviceAccess {
        DeviceAccess::Everywhere
    }
}

/// Starts requests. They continue while it takes the next one.
struct EnsembleInstance {
    plan: Arc<Plan>,
    name: Arc<str>,
    models: Models,
}

impl Instance for EnsembleInstance {
    fn run(&mut self, batch: Batch) {
        for job in batch.jobs {
            if job.is_stopped() {
                job.refuse(Status::new(Code::Cancelled, ""));
            } else {
                Run::start(&self.plan, &self.name, &self.models, &batch.meter, job);
            }
        }
    }
}
