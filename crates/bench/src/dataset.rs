//! What do the inputs of requests hold?

mod folder;
mod generated;
mod json;
mod sequences;

use std::path::PathBuf;

use bytes::Bytes;
use nerite_client::{DataType, Parameter};

pub(crate) use self::sequences::{Sequenced, Sequences, Slot};
use crate::model::{Model, TensorSpec};
use crate::options::{InputData, Options};

/// The inputs of all requests, in streams. A sequence takes the steps of one stream in their order, and other requests take the steps of all streams in turn.
#[derive(Clone, Debug)]
pub(crate) struct Dataset {
    pub(crate) streams: Vec<Vec<Step>>,
    /// Whether the user gave the data, so that a stream's length is that of its sequences.
    pub(crate) is_given: bool,
}

/// The inputs of one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Step {
    pub(crate) tensors: Vec<Content>,
    pub(crate) parameters: Vec<(String, Parameter)>,
}

/// One input.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    pub(crate) name: String,
    pub(crate) datatype: DataType,
    /// With the dimension of the batch, if the model has one.
    pub(crate) shape: Vec<i64>,
    /// As in a request in binary.
    pub(crate) bytes: Bytes,
}

impl Dataset {
    pub(crate) fn read(model: &Model, options: &Options) -> Result<Dataset, String> {
        let streams = match &options.tensors.data {
            InputData::Random | InputData::Zero => vec![vec![generated::step(model, options)?]],
            InputData::Paths(paths) => given(model, options, paths)?,
        };
        let is_given = matches!(options.tensors.data, InputData::Paths(_));
        let batched = |steps: &Vec<Step>| (0..steps.len()).map(|at| batch(model, steps, at, options.batch)).collect();
        let streams = streams.iter().map(batched).collect::<Result<Vec<Vec<Step>>, String>>()?;
        if streams.iter().any(Vec::is_empty) {
            return Err("the input data has a stream without a step".to_owned());
        }
        Ok(Dataset { streams, is_given })
    }

    /// All steps, stream after stream.
    pub(crate) fn steps(&self) -> impl Iterator<Item = &Step> {
        self.streams.iter().flatten()
    }
}

fn given(model: &Model, options: &Options, paths: &[PathBuf]) -> Result<Vec<Vec<Step>>, String> {
    let mut streams = Vec::new();
    for path in paths {
        let shown = path.display();
        if path.is_dir() {
            streams.push(vec![folder::step(model, options, path)?]);
            continue;
        }
        let text = std::fs::read_to_string(path).map_err(|error| format!("--input-data {shown}: {error}"))?;
        streams
            .extend(json::streams(model, options, &text).map_err(|reason| format!("--input-data {shown}: {reason}"))?);
    }
    Ok(streams)
}

/// The shape of one row of an input: the model's, or the user's where it is variable.
fn row_shape(spec: &TensorSpec, options: &Options) -> Result<Vec<i64>, String> {
    let given = options.tensors.shapes.iter().find(|(name, _)| *name == spec.name).map(|(_, shape)| shape);
    match given {
        Some(shape) => {
            let fits = shape.len() == spec.shape.len()
                && shape.iter().zip(&spec.shape).all(|(given, own)| *own == -1 || own == given);
            if fits {
                Ok(shape.clone())
            } else {
                Err(format!("--shape {}:{shape:?} does not fit the model's shape {:?}", spec.name, spec.shape))
            }
        }
        None if spec.shape.iter().all(|dimension| *dimension >= 0) => Ok(spec.shape.clone()),
        None => Err(format!(
            "input '{}' has the variable shape {:?}; give one with --shape {}:d1,d2,…",
            spec.name, spec.shape, spec.name
        )),
    }
}

/// The request that begins with the step `at`: the rows of `batch` steps, from there on and then from the first one.
fn batch(model: &Model, steps: &[Step], at: usize, batch: usize) -> Result<Step, String> {
    let Some(first) = steps.get(at) else { return Ok(Step::default()) };
    if !model.is_batched {
        return if batch == 1 {
            Ok(first.clone())
        } else {
            Err(format!("model '{}' has no batches, so -b is 1 and not {batch}", model.name))
        };
    }
    let mut tensors = Vec::with_capacity(first.tensors.len());
    for content in &first.tensors {
        let mut bytes = Vec::with_capacity(content.bytes.len() * batch);
        for row in 0..batch {
            let step = &steps[(at + row) % steps.len()];
            let same = step.tensors.iter().find(|other| other.name == content.name);
            let same = same.filter(|other| other.shape == content.shape);
            let row = same.ok_or_else(|| {
                format!(
                    "the rows of a batch need the same shapes, and input '{}' has others in the next step",
                    content.name
                )
            })?;
            bytes.extend_from_slice(&row.bytes);
        }
        let shape = std::iter::once(batch as i64).chain(content.shape.iter().copied()).collect();
        tensors.push(Content { shape, bytes: bytes.into(), ..content.clone() });
    }
    Ok(Step { tensors, parameters: first.parameters.clone() })
}
