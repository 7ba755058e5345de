//! What does a backend of one's own look like?
//!
//! The backend `scale` has one input and one output, both FP32. The output is the input times the parameter `factor` of the model.
//! It was written by following `CONTRIBUTING.md`, part "Add a backend".
//!
//! ```
//! use nerite_backend::Runtime;
//! use nerite_backend::conformance::context;
//! use nerite_example_backend::Scale;
//!
//! let text = br#"
//!     name: "double" backend: "scale"
//!     input { name: "X" data_type: TYPE_FP32 dims: -1 }
//!     output { name: "Y" data_type: TYPE_FP32 dims: -1 }
//!     parameters { key: "factor" value { string_value: "2" } }
//! "#;
//! let config = nerite_config::parse_text("models/double/config.pbtxt", text)?;
//! assert!(Scale.load(&context("models/double".as_ref(), config)).is_ok());
//! # Ok::<(), nerite_config::ConfigError>(())
//! ```
#![forbid(unsafe_code)]

use std::sync::Arc;

use nerite_backend::{Compute, CostBound, InOrder, Instance, InstanceSpec, Job, LoadContext, Model, Runtime, Times};
use nerite_request::Status;
use nerite_tensor::DataType;

/// The key of the parameter in `config.pbtxt`.
const FACTOR: &str = "factor";

/// The runtime called `scale`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scale;

impl Runtime for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn engine(&self) -> String {
        "an example".into()
    }

    fn load(&self, context: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        let (inputs, outputs) = (context.config.inputs(), context.config.outputs());
        let ([input], [output]) = (inputs.as_slice(), outputs.as_slice()) else {
            let found = format!("{} inputs and {} outputs", inputs.len(), outputs.len());
            return Err(refused(
                context,
                &format!("backend 'scale' needs one input and one output, configuration has {found}"),
            ));
        };
        for tensor in [input, output] {
            if tensor.data_type != Some(DataType::Fp32) {
                return Err(refused(
                    context,
                    &format!("tensor '{}' must be TYPE_FP32 for backend 'scale'", tensor.name),
                ));
            }
        }
        let factor = factor(context)?;
        Ok(Arc::new(ScaleModel { names: [input.name.as_str().into(), output.name.as_str().into()], factor }))
    }
}

struct ScaleModel {
    /// Of the input and of the output.
    names: [Arc<str>; 2],
    factor: f32,
}

impl Model for ScaleModel {
    /// One multiplication for each element, whatever its value.
    fn cost_bound(&self) -> CostBound {
        CostBound::InputSizes
    }

    fn instance(&self, _: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(InOrder(ScaleInstance { names: self.names.clone(), factor: self.factor })))
    }
}

struct ScaleInstance {
    names: [Arc<str>; 2],
    factor: f32,
}

impl Compute for ScaleInstance {
    fn compute(&mut self, job: &mut Job, times: &mut Times) -> Result<(), Status> {
        let [x, y] = &self.names;
        let Some(tensor) = job.input(x).cloned() else {
            return Err(Status::invalid(format!("input '{x}' is missing")));
        };
        let Some(numbers) = tensor.data.numbers::<f32>() else {
            let bytes = tensor.data.len();
            return Err(Status::invalid(format!("input '{x}' has {bytes} bytes that are no aligned FP32 elements")));
        };
        times.mark_input_end();
        if job.wants(y) {
            // This may be the client's own memory, so it is asked for before anything is computed.
            let mut slot = job.output(y, DataType::Fp32, &tensor.shape)?;
            let Some(mut cells) = slot.cells_mut::<f32>() else {
                return Err(Status::invalid(format!("the place of output '{y}' is not aligned for FP32")));
            };
            cells.fill_with(numbers.iter().map(|number| number * self.factor));
            job.put(y, DataType::Fp32, tensor.shape.clone(), slot.filled());
        }
        times.mark_infer_end();
        Ok(())
    }
}

/// The model's factor; 1 if it names none.
fn factor(context: &LoadContext) -> Result<f32, Status> {
    let Some(text) = context.config.parameter(FACTOR) else { return Ok(1.0) };
    let factor = text.trim().parse::<f32>().ok().filter(|factor| factor.is_finite());
    factor.ok_or_else(|| refused(context, &format!("parameter '{FACTOR}' is '{text}', not a finite number")))
}

fn refused(context: &LoadContext, why: &str) -> Status {
    Status::invalid(format!("unable to load model '{}', {why}", context.model))
}

#[cfg(test)]
mod tests;
