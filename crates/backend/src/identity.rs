//! What is the smallest complete runtime?
//!
//! Its outputs are its inputs, in the order of the configuration. Tests and benchmarks use it, because the time of a request depends only on the
//! server. It has the parameters of Triton's backend of that name: `execute_delay_ms` sleeps before each batch, `instance_wise_delay_multiplier`
//! makes later instances sleep longer.

use std::sync::Arc;
use std::time::Duration;

use nerite_config::ModelConfig;
use nerite_memory::Reason;
use nerite_request::{Code, Status};

use crate::{Batch, CostBound, Instance, InstanceSpec, Job, Jobs, LoadContext, Model, Runtime, Times};

/// The runtime called `identity`.
pub struct Identity;

impl Runtime for Identity {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn engine(&self) -> String {
        "built in".into()
    }

    fn leaves_files_unchanged(&self) -> bool {
        true
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
        Ok(Arc::new(IdentityModel {
            outputs: config.output.len(),
            delay_ms: number(config, "execute_delay_ms")?,
            multiplier: number(config, "instance_wise_delay_multiplier")?,
        }))
    }
}

struct IdentityModel {
    /// The number of outputs. It equals the number of inputs.
    outputs: usize,
    delay_ms: u64,
    multiplier: u64,
}

impl Model for IdentityModel {
    /// A run copies its inputs. With a delay there is no bound, so the model runs on a worker.
    fn cost_bound(&self) -> CostBound {
        if self.delay_ms == 0 { CostBound::InputSizes } else { CostBound::Unknown }
    }

    fn instance(&self, spec: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        let factor = if self.multiplier == 0 { 1 } else { self.multiplier.saturating_mul(spec.index as u64).max(1) };
        let delay = Duration::from_millis(self.delay_ms.saturating_mul(factor));
        Ok(Box::new(IdentityInstance { outputs: self.outputs, delay, results: Vec::new() }))
    }
}

struct IdentityInstance {
    outputs: usize,
    delay: Duration,
    /// Empty between batches. It is kept so that a batch needs no allocation for it.
    results: Vec<Result<(), Status>>,
}

impl Instance for IdentityInstance {
    /// A batch counts as one execution, although its rows are not joined.
    #[expect(clippy::disallowed_methods, reason = "the delay is what the model is for")]
    fn run(&mut self, batch: Batch) {
        let Batch { mut jobs, meter } = batch;
        if jobs.iter().any(Job::is_stopped) {
            let (gone, rest): (Jobs, Jobs) = jobs.into_iter().partition(Job::is_stopped);
            for job in gone {
                job.refuse(Status::new(Code::Cancelled, ""));
            }
            jobs = rest;
        }
        if jobs.is_empty() {
            return;
        }
        let mut times = jobs.iter().map(Job::begin).min_by_key(|times| times.start).unwrap_or_else(Times::begin);
        // Without a delay the inputs are ready when the run begins.
        if !self.delay.is_zero() {
            std::thread::sleep(self.delay);
            times.mark_input_end();
        }
        let mut results = std::mem::take(&mut self.results);
        results.extend(jobs.iter_mut().map(|job| self.copy(job)));
        times.mark_infer_end();
        meter.batch(jobs.iter().map(|job| u64::from(job.rows().max(1))).sum(), &times);
        for (job, result) in jobs.into_iter().zip(results.drain(..)) {
            job.finish(result, times);
        }
        self.results = results;
    }
}

impl IdentityInstance {
    fn copy(&self, job: &mut Job) -> Result<(), Status> {
        for output in 0..self.outputs {
            if !job.wants(output) {
                continue;
            }
            let Some(tensor) = job.inputs().at(output).cloned() else { continue };
            let mut slot = job.output_bytes(output, tensor.data.len())?;
            slot.fill_from(0, &tensor.data, Reason::Model).map_err(|e| Status::internal(e.to_string()))?;
            job.put(output, tensor.datatype, tensor.shape, slot.filled());
        }
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
