//! What is the smallest complete runtime?
//!
//! Its outputs are its inputs, in the order of the configuration. An output whose optional input was left out is zeros of the configured shape, with 1 for
//! each dimension of any size. Tests and benchmarks use it, because the time of a request depends only on the server.
//!
//! It has the parameters of Triton's backend of that name: `execute_delay_ms` sleeps before each batch, `instance_wise_delay_multiplier` makes later
//! instances sleep longer, and a load takes `creation_delay_sec`.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use nerite_config::{ModelConfig, TensorSpec};
use nerite_memory::{Reason, Slot};
use nerite_request::{Code, Status};
use nerite_tensor::{DataType, Shape, ShapeError, byte_size};

use crate::{Batch, CostBound, Instance, InstanceSpec, Job, Jobs, LoadContext, LoadStop, Model, Runtime, Times};

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
        wait(&context.stop, Duration::from_secs(number(config, "creation_delay_sec")?))?;
        let batches = config.max_batch_size > 0;
        let left_out = config.input.iter().map(|input| Zeros::of(&TensorSpec::from(input), batches));
        Ok(Arc::new(IdentityModel {
            outputs: left_out.collect(),
            delay_ms: number(config, "execute_delay_ms")?,
            multiplier: number(config, "instance_wise_delay_multiplier")?,
        }))
    }
}

/// What an output is if its optional input was left out.
struct Zeros {
    datatype: DataType,
    /// Without the batch dimension.
    dims: Vec<i64>,
    batches: bool,
}

impl Zeros {
    /// `None` for an input that each request has.
    fn of(input: &TensorSpec, batches: bool) -> Option<Zeros> {
        let datatype = input.data_type.filter(|_| input.optional)?;
        let dims = input.model_dims().iter().map(|&dim| if dim < 0 { 1 } else { dim }).collect();
        Some(Zeros { datatype, dims, batches })
    }

    fn put(&self, job: &mut Job, output: usize) -> Result<(), Status> {
        let rows = self.batches.then(|| i64::from(job.rows()));
        let shape: Shape = rows.into_iter().chain(self.dims.iter().copied()).collect();
        // A string without characters is its length, which is a number of 32 bits.
        let element = if self.datatype.size().is_some() { self.datatype } else { DataType::Uint32 };
        let invalid = |error: ShapeError| Status::invalid(error.to_string());
        let len = byte_size(element, &shape).map_err(invalid)?.unwrap_or_default();
        let mut zeros = Slot::try_heap(len).map_err(|refused| Status::no_memory("an output", refused))?;
        zeros.clear();
        let mut slot = job.output_bytes(output, len)?;
        slot.fill_from(0, &zeros.filled().into_buffer(), Reason::Model).map_err(|e| Status::internal(e.to_string()))?;
        job.put(output, self.datatype, shape, slot.filled());
        Ok(())
    }
}

struct IdentityModel {
    /// For each output, what it is if its input was left out.
    outputs: Arc<[Option<Zeros>]>,
    delay_ms: u64,
    multiplier: u64,
}

impl Model for IdentityModel {
    /// A run copies its inputs. With a delay or optional inputs there is no such bound, so the model runs on a worker.
    fn cost_bound(&self) -> CostBound {
        let copies = self.delay_ms == 0 && self.outputs.iter().all(Option::is_none);
        if copies { CostBound::InputSizes } else { CostBound::Unknown }
    }

    fn instance(&self, spec: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        let factor = if self.multiplier == 0 { 1 } else { self.multiplier.saturating_mul(spec.index as u64).max(1) };
        let delay = Duration::from_millis(self.delay_ms.saturating_mul(factor));
        Ok(Box::new(IdentityInstance { outputs: Arc::clone(&self.outputs), delay, results: Vec::new() }))
    }
}

struct IdentityInstance {
    outputs: Arc<[Option<Zeros>]>,
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
        for (output, left_out) in self.outputs.iter().enumerate() {
            if !job.wants(output) {
                continue;
            }
            let Some(tensor) = job.inputs().at(output).cloned() else {
                left_out.as_ref().map_or(Ok(()), |zeros| zeros.put(job, output))?;
                continue;
            };
            let mut slot = job.output_bytes(output, tensor.data.len())?;
            slot.fill_from(0, &tensor.data, Reason::Model).map_err(|e| Status::internal(e.to_string()))?;
            job.put(output, tensor.datatype, tensor.shape, slot.filled());
        }
        Ok(())
    }
}

/// Waits for a time, or fails when the load is ended.
fn wait(stop: &LoadStop, delay: Duration) -> Result<(), Status> {
    let (to, stopped) = mpsc::channel();
    let _watch = stop.watch(move |why| drop(to.send(why.to_owned())));
    stopped.recv_timeout(delay).map_or(Ok(()), |why| Err(Status::unavailable(why)))
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
