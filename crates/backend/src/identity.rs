//! What is the smallest runtime that is still one?
//!
//! Its outputs are its inputs, in the order of the configuration. Tests and benchmarks use it, because whatever time such a
//! request takes was spent by the server. Parameters as in Triton's backend of that name: `execute_delay_ms` sleeps before
//! each execution, `instance_wise_delay_multiplier` makes later instances sleep longer.

use std::sync::Arc;
use std::time::Duration;

use nerite_config::ModelConfig;
use nerite_memory::Reason;
use nerite_request::Status;

use crate::{Compute, CostBound, InOrder, Instance, InstanceSpec, Job, LoadContext, Model, Runtime, Times};

/// The runtime called `identity`.
pub struct Identity;

impl Runtime for Identity {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn engine(&self) -> String {
        "built in".into()
    }

    fn load(&self, context: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        let config = &context.config;
        if config.input.len() != config.output.len() {
            return Err(Status::invalid(format!(
                "unable to load model '{}', identity needs as many outputs as inputs, configuration has {} inputs and {} \
                 outputs",
                context.model,
                config.input.len(),
                config.output.len()
            )));
        }
        let pairs = config.input.iter().zip(&config.output).map(|(i, o)| (i.name.clone(), o.name.clone())).collect();
        Ok(Arc::new(IdentityModel {
            pairs,
            delay_ms: number(config, "execute_delay_ms")?,
            multiplier: number(config, "instance_wise_delay_multiplier")?,
        }))
    }
}

struct IdentityModel {
    pairs: Arc<[(String, String)]>,
    delay_ms: u64,
    multiplier: u64,
}

impl Model for IdentityModel {
    /// It copies its inputs. Who wants a delay waits on a worker.
    fn cost_bound(&self) -> CostBound {
        if self.delay_ms == 0 { CostBound::InputSizes } else { CostBound::Unknown }
    }

    fn instance(&self, spec: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        let factor = if self.multiplier == 0 { 1 } else { self.multiplier.saturating_mul(spec.index as u64).max(1) };
        let delay = Duration::from_millis(self.delay_ms.saturating_mul(factor));
        Ok(Box::new(InOrder(IdentityInstance { pairs: Arc::clone(&self.pairs), delay })))
    }
}

struct IdentityInstance {
    pairs: Arc<[(String, String)]>,
    delay: Duration,
}

impl Compute for IdentityInstance {
    #[expect(clippy::disallowed_methods, reason = "the delay is what the model is for")]
    fn compute(&mut self, job: &mut Job, times: &mut Times) -> Result<(), Status> {
        if !self.delay.is_zero() {
            std::thread::sleep(self.delay);
        }
        times.input_ends();
        for (input, output) in self.pairs.iter() {
            let Some(tensor) = job.input(input).cloned() else { continue };
            if !job.wants(output) {
                continue;
            }
            let mut slot = job.output_bytes(output, tensor.data.len())?;
            slot.fill_from(0, &tensor.data, Reason::Model).map_err(|e| Status::internal(e.to_string()))?;
            job.put(output, tensor.datatype, tensor.shape, slot.filled());
        }
        times.infer_ends();
        Ok(())
    }
}

fn number(config: &ModelConfig, key: &str) -> Result<u64, Status> {
    let Some(parameter) = config.parameters.get(key) else { return Ok(0) };
    parameter.string_value.trim().parse().map_err(|_| {
        Status::invalid(format!(
            "parameter '{key}' of model '{}' is '{}', not a number",
            config.name, parameter.string_value
        ))
    })
}
