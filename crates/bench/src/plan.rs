//! Which requests are sent, and where do their tensors lie?

use nerite_client::{DataType, Error, RegionRef, Request, SharedMemory, Tensor};

use crate::dataset::{Dataset, Step};
use crate::model::{Model, TensorSpec};
use crate::options::{Options, Tensors};

/// Tensors begin at multiples of this, as engines want.
const ALIGN: usize = 64;
/// It makes the server say which response of a stream is the last one.
const ENABLE_FINAL: &str = "triton_enable_empty_final_response";

/// The requests of a measurement, one for each step of the data.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    model: String,
    /// `None`: the latest.
    version: Option<u64>,
    parameters: Vec<(String, nerite_client::Parameter)>,
    steps: Vec<Step>,
    outputs: Vec<TensorSpec>,
    layout: Layout,
}

/// Where tensors lie in shared memory: first the inputs of all steps, then the outputs, which all requests share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Layout {
    /// Offsets by step and input.
    inputs: Vec<Vec<usize>>,
    /// Offset and bytes by output.
    outputs: Vec<(usize, usize)>,
    bytes: usize,
}

impl Plan {
    pub(crate) fn new(model: &Model, options: &Options, data: &Dataset) -> Plan {
        let steps: Vec<Step> = data.steps().cloned().collect();
        let outputs: Vec<usize> = model.outputs.iter().map(|output| output_bytes(output, options)).collect();
        let mut parameters = options.parameters.clone();
        if options.is_streaming {
            parameters.push((ENABLE_FINAL.to_owned(), nerite_client::Parameter::Bool(true)));
        }
        Plan {
            model: model.name.clone(),
            version: options.version.parse().ok(),
            parameters,
            layout: Layout::new(&steps, &outputs),
            steps,
            outputs: model.outputs.clone(),
        }
    }

    /// Bytes of the shared memory that holds all tensors.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.layout.bytes
    }

    /// The number of requests.
    pub(crate) fn steps(&self) -> usize {
        self.steps.len()
    }

    /// The requests with their tensors in the messages.
    pub(crate) fn inline(&self) -> Result<Vec<Request>, Error> {
        let one = |step: &Step| {
            let mut request = self.base(step);
            for content in &step.tensors {
                let bytes = content.bytes.clone();
                request = request.input(Tensor::from_bytes(&content.name, content.datatype, &content.shape, bytes)?);
            }
            Ok(self.outputs.iter().fold(request, |request, output| request.output(&output.name)))
        };
        self.steps.iter().map(one).collect()
    }

    /// The requests with their tensors in the memory of this name.
    pub(crate) fn placed(&self, name: &str) -> Vec<Request> {
        let window = |offset: usize, bytes: usize| RegionRef {
            name: name.into(),
            offset: offset as u64,
            byte_size: bytes as u64,
        };
        let one = |(step, offsets): (&Step, &Vec<usize>)| {
            let inputs = step.tensors.iter().zip(offsets);
            let request = inputs.fold(self.base(step), |request, (content, offset)| {
                let window = window(*offset, content.bytes.len());
                request.input_in_window(&content.name, content.datatype, &content.shape, window)
            });
            let outputs = self.outputs.iter().zip(&self.layout.outputs);
            outputs.fold(request, |request, (output, (offset, bytes))| {
                request.output_in_window(&output.name, window(*offset, *bytes))
            })
        };
        self.steps.iter().zip(&self.layout.inputs).map(one).collect()
    }

    /// Writes the inputs of all steps to the memory.
    pub(crate) fn fill(&self, memory: &SharedMemory) -> Result<(), Error> {
        self.inputs().try_for_each(|(offset, bytes)| memory.write_bytes(offset, bytes))
    }

    /// The inputs of all steps, with their offsets in the memory.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let steps = self.steps.iter().zip(&self.layout.inputs);
        steps.flat_map(|(step, offsets)| {
            step.tensors.iter().zip(offsets).map(|(content, offset)| (*offset, &content.bytes[..]))
        })
    }

    fn base(&self, step: &Step) -> Request {
        let request = Request::new(&self.model);
        let request = self.version.map_or(request.clone(), |version| request.version(version));
        let parameters = step.parameters.iter().chain(&self.parameters);
        parameters.fold(request, |request, (name, value)| request.parameter(name, value.clone()))
    }
}

impl Layout {
    fn new(steps: &[Step], outputs: &[usize]) -> Layout {
        let mut end = 0;
        let mut take = |bytes: usize| {
            let at = end;
            end = (at + bytes).next_multiple_of(ALIGN);
            at
        };
        let inputs = steps.iter().map(|step| step.tensors.iter().map(|content| take(content.bytes.len())).collect());
        let inputs = inputs.collect();
        let outputs = outputs.iter().map(|bytes| (take(*bytes), *bytes)).collect();
        Layout { inputs, outputs, bytes: end.max(ALIGN) }
    }
}

/// The bytes of an output: those of its shape, or what the options say of variable ones.
fn output_bytes(output: &TensorSpec, options: &Options) -> usize {
    let Tensors { shapes, .. } = &options.tensors;
    let shape = shapes.iter().find(|(name, _)| *name == output.name).map_or(&output.shape, |(_, shape)| shape);
    let is_fixed = output.datatype != DataType::Bytes && shape.iter().all(|dimension| *dimension >= 0);
    let row = match output.datatype.size() {
        Some(size) if is_fixed => shape.iter().product::<i64>() as usize * size,
        _ => options.output_bytes,
    };
    row * options.batch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Content;

    fn step(bytes: usize) -> Step {
        let (name, datatype, shape) = ("A".to_owned(), DataType::Int8, vec![bytes as i64]);
        Step { tensors: vec![Content { name, datatype, shape, bytes: vec![1; bytes].into() }], parameters: Vec::new() }
    }

    #[test]
    fn tensors_are_aligned_and_do_not_overlap() {
        let layout = Layout::new(&[step(10), step(65)], &[4, 100]);
        let expect = Layout { inputs: vec![vec![0], vec![64]], outputs: vec![(192, 4), (256, 100)], bytes: 384 };
        assert_eq!(layout, expect);
    }

    #[test]
    fn an_output_of_variable_size_gets_the_bytes_of_the_options() {
        let spec = |datatype, shape: &[i64]| TensorSpec {
            name: "A".into(),
            datatype,
            shape: shape.into(),
            is_optional: false,
        };
        let options = Options { batch: 2, output_bytes: 100, ..Options::default() };
        assert_eq!(output_bytes(&spec(DataType::Int32, &[3]), &options), 24);
        assert_eq!(output_bytes(&spec(DataType::Int32, &[-1]), &options), 200);
        assert_eq!(output_bytes(&spec(DataType::Bytes, &[1]), &options), 200);
    }
}
