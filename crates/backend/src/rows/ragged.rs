//! How are requests of unequal shapes joined into one execution, and its results divided again?
//!
//! ```text
//!   job 0: X [1,3] ─┐                 X [5]        ┌─► job 0: Y [1,3]
//!                   ├─► the model ◄── ENDS [3,5]   │   (scattered by the shape of X)
//!   job 1: X [1,2] ─┘       └──────── Y [5] ───────┴─► job 1: Y [1,2]
//! ```
//! A ragged input has the elements of all jobs, one after the other, without padding. Batch inputs, which the server
//! makes, tell the model where each job's part is. An output is scattered by the shape of an input.
//!
//! An input may be padded instead ([`Padding`]): see [`super::padded`].

use nerite_config::proto::batch_input::Kind;
use nerite_config::{ModelConfig, PaddedInput, Padding, TensorSpec, tensor_data_type};
use nerite_memory::Buffer;
use nerite_request::Status;
use nerite_tensor::{DataType, Name, Shape, Tensor, element_count};

use crate::Job;

/// What a configuration says about requests of unequal shapes.
#[derive(Clone, Debug, Default)]
pub struct Ragged {
    /// The indices of ragged inputs.
    inputs: Vec<usize>,
    batch_inputs: Vec<BatchTensor>,
    scattered: Vec<Scattered>,
    /// The padded inputs, by their indices.
    padded: Vec<(usize, PaddedInput)>,
}

/// An input that the server makes for each batch.
#[derive(Clone, Debug)]
struct BatchTensor {
    kind: Kind,
    names: Vec<Name>,
    datatype: DataType,
    source: Source,
}

/// The input of requests that a part is measured by.
#[derive(Clone, Debug)]
struct Source {
    index: usize,
    /// For errors.
    name: Name,
}

/// An output whose parts have the shape of an input.
#[derive(Clone, Debug)]
struct Scattered {
    name: String,
    /// The index of that input.
    source: usize,
    /// With the batch dimension. A -1 is replaced by the size of the input.
    dims: Vec<i64>,
}

impl Ragged {
    /// Reads them from a valid configuration.
    pub fn of(config: &ModelConfig) -> Ragged {
        let inputs = config.inputs();
        let index = |name: &str| inputs.iter().position(|input| input.name == name);
        let ragged = inputs.iter().enumerate().filter(|(_, input)| input.ragged);
        let outputs = config.outputs();
        let dims = |name: &String| {
            let spec = outputs.iter().find(|output| output.name == *name);
            spec.map(|spec| TensorSpec::shape(spec, config.batches()))
        };
        let batch_inputs = config.batch_input.iter().filter_map(|input| {
            let source = input.source_input.first()?;
            Some(BatchTensor {
                kind: input.kind(),
                names: input.target_name.iter().map(Name::from).collect(),
                datatype: tensor_data_type(input.data_type)?,
                source: Source { index: index(source)?, name: source.into() },
            })
        });
        let scattered =
            config.batch_output.iter().filter_map(|output| Some((output, index(output.source_input.first()?)?)));
        let scattered = scattered.flat_map(|(output, source)| {
            let one = |name: &String| Some(Scattered { name: name.clone(), source, dims: dims(name)? });
            output.target_name.iter().filter_map(one).collect::<Vec<_>>()
        });
        let padding = Padding::of(config).unwrap_or_default();
        let padded = |(at, input): (usize, &TensorSpec)| Some((at, padding.input(&input.name)?.clone()));
        Ragged {
            inputs: ragged.map(|(at, _)| at).collect(),
            batch_inputs: batch_inputs.collect(),
            scattered: scattered.collect(),
            padded: inputs.iter().enumerate().filter_map(padded).collect(),
        }
    }

    /// Whether the configuration says nothing about unequal shapes.
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty() && self.batch_inputs.is_empty() && self.scattered.is_empty() && self.padded.is_empty()
    }

    /// Whether the shapes of the input with this index may differ among the jobs of a batch.
    pub(super) fn has(&self, input: usize) -> bool {
        self.inputs.contains(&input)
    }

    /// How the input with this index is padded, if it is.
    pub(super) fn padded(&self, input: usize) -> Option<&PaddedInput> {
        self.padded.iter().find(|(index, _)| *index == input).map(|(_, padded)| padded)
    }

    /// Whether inputs of these unequal shapes may share an execution.
    pub(super) fn may_differ(&self, input: usize, one: &[i64], next: &[i64]) -> bool {
        let same = |padded: &PaddedInput| padded.padded(one).get(1..) == padded.padded(next).get(1..);
        self.has(input) || self.padded(input).is_some_and(same)
    }

    /// The shape in which the model gets a ragged input of these parts.
    pub(super) fn shape(parts: &[&Tensor]) -> Result<Shape, Status> {
        let mut elements = 0u64;
        for part in parts {
            elements = elements.saturating_add(count(&part.name, &part.shape)?);
        }
        Ok(Shape::from_slice(&[elements.cast_signed()]))
    }

    /// The inputs that the server makes for these jobs.
    pub(super) fn batch_inputs(&self, jobs: &[Job]) -> Result<Vec<Tensor>, Status> {
        let mut made = Vec::new();
        for input in &self.batch_inputs {
            let shapes: Vec<&[i64]> = jobs
                .iter()
                .map(|job| job.inputs().at(input.source.index).map_or(&[][..], |source| &source.shape))
                .collect();
            let (shape, numbers) = batch_input(input.kind, &input.source.name, &shapes)?;
            let data = bytes(input, &numbers)?;
            let tensor = |name: &Name| Tensor {
                name: name.clone(),
                datatype: input.datatype,
                shape: shape.clone(),
                data: data.clone(),
            };
            made.extend(input.names.iter().map(tensor));
        }
        Ok(made)
    }

    /// The shape of this job's part of an output, if the output is scattered.
    pub(super) fn part(&self, output: &str, job: &Job) -> Option<Shape> {
        (!self.is_cut(output)).then(|| self.shape_by_source(output, job)).flatten()
    }

    /// Whether a job's part of an output is cut out of its rows, because it is scattered by an input that is padded.
    pub(super) fn is_cut(&self, output: &str) -> bool {
        self.scattered.iter().any(|one| one.name == output && self.padded(one.source).is_some())
    }

    /// Whether a job's part of an output has the shape of an input.
    pub(super) fn is_scattered(&self, output: &str) -> bool {
        self.scattered.iter().any(|one| one.name == output)
    }

    /// The shape that is cut out of this job's rows of an output, if it is.
    pub(super) fn cut(&self, output: &str, job: &Job) -> Option<Shape> {
        self.is_cut(output).then(|| self.shape_by_source(output, job)).flatten()
    }

    fn shape_by_source(&self, output: &str, job: &Job) -> Option<Shape> {
        let scattered = self.scattered.iter().find(|one| one.name == output)?;
        let source = job.inputs().at(scattered.source)?;
        let dim = |(at, dim): (usize, &i64)| if *dim < 0 { source.shape.get(at).copied().unwrap_or(1) } else { *dim };
        Some(scattered.dims.iter().enumerate().map(dim).collect())
    }
}

/// Shape and values of a batch input. `shapes` are the shapes of the source input in each request, with rows.
fn batch_input(kind: Kind, source: &str, shapes: &[&[i64]]) -> Result<(Shape, Vec<u64>), Status> {
    let counts: Vec<u64> = shapes.iter().map(|shape| count(source, shape)).collect::<Result<_, _>>()?;
    let sums = counts.iter().scan(0u64, |sum, count| {
        *sum = sum.saturating_add(*count);
        Some(*sum)
    });
    let items = || {
        shapes.iter().flat_map(|shape| {
            let (rows, dims) = shape.split_first().map_or((0, &[][..]), |(rows, dims)| (*rows, dims));
            (0..rows).flat_map(move |_| dims.iter().map(|dim| dim.unsigned_abs()))
        })
    };
    let numbers: Vec<u64> = match kind {
        Kind::BatchElementCount => counts,
        Kind::BatchAccumulatedElementCount => sums.collect(),
        Kind::BatchAccumulatedElementCountWithZero => std::iter::once(0).chain(sums).collect(),
        // Only the shape has a meaning. Triton does not set the values.
        Kind::BatchMaxElementCountAsShape => {
            vec![0; usize::try_from(counts.into_iter().max().unwrap_or(0)).unwrap_or(0)]
        }
        Kind::BatchItemShape | Kind::BatchItemShapeFlatten => items().collect(),
    };
    let len = numbers.len().cast_signed() as i64;
    if kind != Kind::BatchItemShape {
        return Ok((Shape::from_slice(&[len]), numbers));
    }
    let dims = shapes.first().map_or(0, |shape| shape.len().saturating_sub(1));
    let rows = shapes.iter().filter_map(|shape| shape.first()).sum();
    if i64::try_from(dims).ok().and_then(|dims| dims.checked_mul(rows)) != Some(len) {
        return Err(Status::invalid(format!("input '{source}' has unequal numbers of dimensions in a batch")));
    }
    Ok((Shape::from_slice(&[rows, dims.cast_signed() as i64]), numbers))
}

fn bytes(input: &BatchTensor, numbers: &[u64]) -> Result<Buffer, Status> {
    if input.datatype == DataType::Fp32 {
        #[expect(clippy::cast_precision_loss, reason = "the configuration asks for FP32")]
        return Ok(Buffer::from_numbers(numbers.iter().map(|number| *number as f32).collect()));
    }
    let number = |number: &u64| {
        i32::try_from(*number).map_err(|_| {
            Status::invalid(format!(
                "input '{}' has {number} elements in a batch, INT32 counts to {}",
                input.source.name,
                i32::MAX
            ))
        })
    };
    Ok(Buffer::from_numbers(numbers.iter().map(number).collect::<Result<Vec<i32>, _>>()?))
}

fn count(input: &str, shape: &[i64]) -> Result<u64, Status> {
    element_count(shape).map_err(|e| Status::invalid(format!("input '{input}': {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(kind: Kind, shapes: &[&[i64]], shape: &[i64], numbers: &[u64]) {
        let (found, values) = batch_input(kind, "X", shapes).expect("a batch input");
        assert_eq!((&found[..], &values[..]), (shape, numbers), "{kind:?} {shapes:?}");
    }

    #[test]
    fn batch_inputs_say_where_each_request_is() {
        let shapes: &[&[i64]] = &[&[1, 3], &[2, 2], &[1, 0]];
        check(Kind::BatchElementCount, shapes, &[3], &[3, 4, 0]);
        check(Kind::BatchAccumulatedElementCount, shapes, &[3], &[3, 7, 7]);
        check(Kind::BatchAccumulatedElementCountWithZero, shapes, &[4], &[0, 3, 7, 7]);
        check(Kind::BatchMaxElementCountAsShape, shapes, &[4], &[0; 4]);
        check(Kind::BatchItemShape, &[&[2, 4, 5], &[1, 6, 7]], &[3, 2], &[4, 5, 4, 5, 6, 7]);
        check(Kind::BatchItemShapeFlatten, &[&[2, 4, 5], &[1, 6, 7]], &[6], &[4, 5, 4, 5, 6, 7]);
        check(Kind::BatchItemShape, &[&[1, 3], &[2, 2]], &[3, 1], &[3, 2, 2]);
        assert!(batch_input(Kind::BatchItemShape, "X", &[&[1, 3], &[1, 3, 4]]).is_err());
    }
}
