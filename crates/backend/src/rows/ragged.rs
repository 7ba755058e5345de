//! How are requests of unequal shapes joined into one execution, and its results divided again?
//!
//! ```text
//!   job 0: X [1,3] ─┐                 X [5]        ┌─► job 0: Y [1,3]
//!                   ├─► the model ◄── ENDS [3,5]   │   (scattered by the shape of X)
//!   job 1: X [1,2] ─┘       └──────── Y [5] ───────┴─► job 1: Y [1,2]
//! ```
//! A ragged input has the elements of all jobs, one after the other, without padding. The server makes batch inputs, from which the model learns
//! where each job's part is. An output is scattered by the shape of an input: each job's part has that shape.
//!
//! An input may be padded instead ([`Padding`]): see [`super::padded`].

use nerite_config::proto::batch_input::Kind;
use nerite_config::{ModelConfig, PaddedInput, Padding, TensorSpec, tensor_data_type};
use nerite_memory::{Buffer, Slot};
use nerite_request::Status;
use nerite_tensor::{DataType, Name, Shape, Tensor, byte_size, element_count};

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

/// The input of requests from which a batch input is computed.
#[derive(Clone, Debug)]
struct Source {
    index: usize,
    /// The name of the input, for errors.
    name: Name,
}

/// An output whose parts have the shape of an input.
#[derive(Clone, Debug)]
struct Scattered {
    /// The index of the output.
    output: usize,
    /// The index of that input.
    source: usize,
    /// The dimensions of a part, with the batch dimension. A -1 is replaced by the size of the input.
    dims: Vec<i64>,
}

impl Ragged {
    /// Reads the settings from a configuration that was checked.
    pub fn of(config: &ModelConfig) -> Ragged {
        let inputs = config.inputs();
        let index = |name: &str| inputs.iter().position(|input| input.name == name);
        let ragged = inputs.iter().enumerate().filter(|(_, input)| input.ragged);
        let outputs = config.outputs();
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
            let one = |name: &String| {
                let output = outputs.iter().position(|output| output.name == *name)?;
                Some(Scattered { output, source, dims: outputs[output].shape(config.batches()) })
            };
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

    /// How the input with this index is padded. `None` if it is not padded.
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
            let numbers = Numbers::of(input.kind, &input.source.name, &shapes)?;
            let shape = numbers.shape.clone();
            let data = bytes(input, numbers)?;
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
    pub(super) fn part(&self, output: usize, job: &Job) -> Option<Shape> {
        (!self.is_cut(output)).then(|| self.shape_by_source(output, job)).flatten()
    }

    /// Whether a job's part of an output is cut out of its rows, because it is scattered by an input that is padded.
    pub(super) fn is_cut(&self, output: usize) -> bool {
        self.scattered.iter().any(|one| one.output == output && self.padded(one.source).is_some())
    }

    /// Whether a job's part of an output has the shape of an input.
    pub(super) fn is_scattered(&self, output: usize) -> bool {
        self.scattered.iter().any(|one| one.output == output)
    }

    /// The shape that is cut out of this job's rows of an output. `None` if the output is not cut.
    pub(super) fn cut(&self, output: usize, job: &Job) -> Option<Shape> {
        self.is_cut(output).then(|| self.shape_by_source(output, job)).flatten()
    }

    fn shape_by_source(&self, output: usize, job: &Job) -> Option<Shape> {
        let scattered = self.scattered.iter().find(|one| one.output == output)?;
        let source = job.inputs().at(scattered.source)?;
        let dim = |(at, dim): (usize, &i64)| if *dim < 0 { source.shape.get(at).copied().unwrap_or(1) } else { *dim };
        Some(scattered.dims.iter().enumerate().map(dim).collect())
    }
}

/// The numbers of a batch input. They are computed one at a time, because clients choose how many there are, and there may not be enough memory for
/// all.
struct Numbers<'a> {
    /// The shape of the batch input.
    shape: Shape,
    each: Box<dyn Iterator<Item = u64> + 'a>,
}

impl<'a> Numbers<'a> {
    /// `shapes` are the shapes of the source input in each request, with rows.
    fn of(kind: Kind, source: &str, shapes: &'a [&'a [i64]]) -> Result<Numbers<'a>, Status> {
        // The number of elements of each request.
        let counts: Vec<u64> = shapes.iter().map(|shape| count(source, shape)).collect::<Result<_, _>>()?;
        let requests = counts.len() as u64;
        Ok(match kind {
            Kind::BatchElementCount => Numbers::flat(requests, counts.into_iter()),
            Kind::BatchAccumulatedElementCount => Numbers::flat(requests, sums(counts)),
            Kind::BatchAccumulatedElementCountWithZero => {
                Numbers::flat(requests + 1, std::iter::once(0).chain(sums(counts)))
            }
            // Only the shape has a meaning. Triton leaves the values unset.
            Kind::BatchMaxElementCountAsShape => {
                let elements = counts.into_iter().max().unwrap_or(0);
                Numbers::flat(elements, (0..elements).map(|_| 0))
            }
            Kind::BatchItemShapeFlatten => {
                let of_one = |shape: &&[i64]| rows(shape).saturating_mul(dims(shape).len() as u64);
                Numbers::flat(shapes.iter().map(of_one).fold(0, u64::saturating_add), items(shapes))
            }
            Kind::BatchItemShape => {
                let each = shapes.first().map_or(0, |shape| dims(shape).len());
                if shapes.iter().any(|shape| dims(shape).len() != each) {
                    let unequal = format!("input '{source}' has unequal numbers of dimensions in a batch");
                    return Err(Status::invalid(unequal));
                }
                let rows = shapes.iter().map(|shape| rows(shape)).fold(0, u64::saturating_add);
                let shape = Shape::from_slice(&[size(rows), size(each as u64)]);
                Numbers { shape, each: Box::new(items(shapes)) }
            }
        })
    }

    fn flat(len: u64, each: impl Iterator<Item = u64> + 'a) -> Numbers<'a> {
        Numbers { shape: Shape::from_slice(&[size(len)]), each: Box::new(each) }
    }
}

/// `count` as a dimension of a shape. A count that does not fit becomes the largest dimension, for which there is never enough memory.
fn size(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The sum of each number and those before it.
fn sums(counts: Vec<u64>) -> impl Iterator<Item = u64> {
    counts.into_iter().scan(0u64, |sum, count| {
        *sum = sum.saturating_add(count);
        Some(*sum)
    })
}

/// The number of rows of a request. If the request has no elements, its client may choose any number of rows.
fn rows(shape: &[i64]) -> u64 {
    shape.first().map_or(0, |rows| u64::try_from(*rows).unwrap_or(0))
}

/// The dimensions of one row.
fn dims(shape: &[i64]) -> &[i64] {
    shape.get(1..).unwrap_or_default()
}

/// The dimensions of each row of each request.
fn items<'a>(shapes: &'a [&'a [i64]]) -> impl Iterator<Item = u64> + 'a {
    shapes.iter().flat_map(|shape| (0..rows(shape)).flat_map(|_| dims(shape).iter().map(|dim| dim.unsigned_abs())))
}

/// Writes the numbers in the datatype of the batch input. Fails if there is not enough memory.
fn bytes(input: &BatchTensor, numbers: Numbers<'_>) -> Result<Buffer, Status> {
    let name = input.names.first().map_or("", |name| name);
    let Numbers { shape, each } = numbers;
    let size = byte_size(input.datatype, &shape).map_err(|e| Status::invalid(format!("batch input '{name}': {e}")))?;
    let slot = Slot::try_heap(size.unwrap_or_default());
    let mut slot = slot.map_err(|refused| Status::no_memory(format_args!("batch input '{name}'"), refused))?;
    if input.datatype == DataType::Fp32 {
        #[expect(clippy::cast_precision_loss, reason = "the configuration asks for FP32")]
        let each = each.map(|number| number as f32);
        slot.cells_mut::<f32>().map(|mut cells| cells.fill_with(each));
        return Ok(slot.filled().into_buffer());
    }
    let mut excess = None;
    let each = each.map_while(|number| i32::try_from(number).map_err(|_| excess = Some(number)).ok());
    slot.cells_mut::<i32>().map(|mut cells| cells.fill_with(each));
    match excess {
        None => Ok(slot.filled().into_buffer()),
        Some(number) => Err(Status::invalid(format!(
            "input '{}' has {number} elements in a batch, INT32 counts to {}",
            input.source.name,
            i32::MAX
        ))),
    }
}

fn count(input: &str, shape: &[i64]) -> Result<u64, Status> {
    element_count(shape).map_err(|e| Status::invalid(format!("input '{input}': {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(kind: Kind, shapes: &[&[i64]], shape: &[i64], numbers: &[i32]) {
        let (found, data) = made(kind, DataType::Int32, shapes).expect("a batch input");
        assert_eq!((&found[..], data.numbers()), (shape, Some(numbers)), "{kind:?} {shapes:?}");
        let (found, data) = made(kind, DataType::Fp32, shapes).expect("a batch input");
        let numbers: Vec<f32> = numbers.iter().map(|number| *number as f32).collect();
        assert_eq!((&found[..], data.numbers()), (shape, Some(&numbers[..])), "{kind:?} {shapes:?}");
    }

    fn made(kind: Kind, datatype: DataType, shapes: &[&[i64]]) -> Result<(Shape, Buffer), Status> {
        let source = Source { index: 0, name: "X".into() };
        let numbers = Numbers::of(kind, "X", shapes)?;
        Ok((
            numbers.shape.clone(),
            bytes(&BatchTensor { kind, names: vec!["TOLD".into()], datatype, source }, numbers)?,
        ))
    }

    #[track_caller]
    fn check_refused(kind: Kind, shapes: &[&[i64]], text: &str) {
        for datatype in [DataType::Int32, DataType::Fp32] {
            let refused = made(kind, datatype, shapes).err().map(|status| status.message).unwrap_or_default();
            assert!(refused.contains(text), "{kind:?} {shapes:?}: {refused}");
        }
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
        check(Kind::BatchItemShapeFlatten, &[&[1, 3], &[1, 6, 7]], &[3], &[3, 6, 7]);
        check(Kind::BatchMaxElementCountAsShape, &[&[1, 0]], &[0], &[]);
        check_refused(Kind::BatchItemShape, &[&[1, 3], &[1, 3, 4]], "unequal numbers of dimensions");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri ends where the system would refuse")]
    fn more_numbers_than_fit_into_memory_are_refused() {
        const MUCH: i64 = 1 << 50;
        let no_memory = "the server has no memory for batch input 'TOLD'";
        check_refused(Kind::BatchMaxElementCountAsShape, &[&[1, 2], &[1, MUCH]], no_memory);
        // Rows without elements cost the client nothing, so it can name any number of them.
        for kind in [Kind::BatchItemShape, Kind::BatchItemShapeFlatten] {
            check_refused(kind, &[&[MUCH, 0]], no_memory);
            check_refused(kind, &[&[i64::MAX, 0], &[i64::MAX, 0], &[i64::MAX, 0]], "batch input 'TOLD': ");
        }
    }

    #[test]
    fn numbers_that_int32_cannot_hold_are_refused() {
        let shapes: &[&[i64]] = &[&[1, 1 << 31]];
        let refused = made(Kind::BatchElementCount, DataType::Int32, shapes).err().map(|status| status.message);
        let text = "input 'X' has 2147483648 elements in a batch, INT32 counts to 2147483647";
        assert_eq!(refused.as_deref(), Some(text));
        assert!(made(Kind::BatchElementCount, DataType::Fp32, shapes).is_ok());
    }
}
