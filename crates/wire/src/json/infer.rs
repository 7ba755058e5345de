//! How is an inference request read?

mod input;
mod output;
pub mod parameters;

use std::collections::HashSet;

use nerite_memory::{Buffer, Extent, NoMemory};
use nerite_request::limits::{Counted, TensorsMax, check_count};
use nerite_request::{InferInputs, InferRequest, Recycled, RequestedOutputs, Status};
use nerite_tensor::Name;

use super::fault::{Fault, Malformed, mismatch, prefixed};
use super::lex::{Kind, Reader};
use super::limits::{DIM_BYTES, ITEM_BYTES};
use super::value::{Owner, Seen, absent, optional, short};
use crate::budget::Budget;
use input::read_input;
use output::{RequestedOutput, read_output};
pub use parameters::read_timeout;
use parameters::{RequestParameters, read_parameters};

/// An inference request as it arrived.
#[derive(Clone, Copy, Debug)]
pub struct InferText<'b> {
    /// The JSON part of the body.
    pub json: &'b [u8],
    /// The binary tensors after the JSON part. Inputs become slices of it.
    pub tail: &'b Buffer,
    /// The model in the path.
    pub model: &'b str,
    /// The version in the path. Empty for the highest.
    pub version: &'b str,
    /// The most bytes that the JSON part, and each tensor in it, may have.
    pub bytes_max: u64,
    /// The most inputs and outputs that the request may name.
    pub tensors_max: TensorsMax,
}

/// Which outputs are sent as binary. All others are sent as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendering {
    binary: bool,
    /// The outputs that differ from `binary`.
    except: HashSet<Name>,
}

impl Rendering {
    /// All outputs as binary, or all as JSON.
    pub fn all(binary: bool) -> Rendering {
        Rendering { binary, except: HashSet::new() }
    }

    /// Whether the output called `name` is sent as binary.
    pub fn is_binary(&self, name: &str) -> bool {
        self.binary != self.except.contains(name)
    }
}

/// The requested outputs, and how each of them is to be sent.
#[derive(Default)]
struct Wishes {
    outputs: RequestedOutputs,
    rendering: Option<Rendering>,
}

impl Wishes {
    fn push(&mut self, RequestedOutput { infer_request, binary }: RequestedOutput) {
        let rendering = self.rendering.get_or_insert_with(|| Rendering::all(binary));
        if binary != rendering.binary {
            rendering.except.insert(infer_request.name.clone());
        }
        self.outputs.push(infer_request);
    }
}

/// The binary tensors that are not yet assigned to an input.
struct Tail<'b> {
    buffer: &'b Buffer,
    at: usize,
}

impl Tail<'_> {
    /// Takes the next `size` bytes. If there are too few, the error is how many are missing.
    fn take(&mut self, size: u64) -> Result<Buffer, u64> {
        if size == 0 {
            return Ok(Buffer::empty());
        }
        let left = self.buffer.len() - self.at;
        let taken = usize::try_from(size).ok().and_then(|len| Extent::new(self.at, len, self.buffer.len()).ok());
        let extent = taken.ok_or_else(|| size - left as u64)?;
        self.at = extent.end();
        Ok(self.buffer.slice(extent))
    }
}

/// The members of the root. Each has been read, or refused with an error.
#[derive(Default)]
struct Document {
    id: Seen<Name>,
    request_parameters: Seen<RequestParameters>,
    inputs: Seen<InferInputs>,
    outputs: Seen<Wishes>,
}

/// Reads a request whose body begins with JSON.
pub fn read_infer(text: &InferText<'_>) -> Result<(Recycled<InferRequest>, Rendering), Status> {
    check_json_size(text.json.len() as u64, text.bytes_max)?;
    let mut tail = Tail { buffer: text.tail, at: 0 };
    let mut budget = Budget::of_text(text.json).map_err(refuse)?;
    let document = read_document(text, &mut tail, &mut budget)?;

    let id = short(optional(document.id, "id", Owner::Request)?.unwrap_or_default(), "id")?;
    let request_parameters = document.request_parameters.transpose()?.unwrap_or_default();
    let inputs = match document.inputs {
        Some(inputs) => inputs?,
        None => return Err(prefixed("Unable to parse 'inputs': ", absent("inputs"))),
    };
    if tail.at < text.tail.len() {
        return Err(Status::invalid(format!("unexpected additional input data for model '{}'", text.model)));
    }
    let Wishes { outputs, rendering } = document.outputs.transpose()?.unwrap_or_default();

    let rendering = rendering.unwrap_or_else(|| Rendering::all(request_parameters.binary_data_output));
    let infer_request = InferRequest {
        model: text.model.into(),
        version: text.version.into(),
        id,
        priority: request_parameters.priority,
        timeout_us: request_parameters.timeout_us,
        sequence: request_parameters.sequence,
        parameters: request_parameters.parameters,
        inputs,
        raw_input: None,
        outputs,
        empty_final: false,
        trace: None,
    };
    Ok((infer_request.into(), rendering))
}

/// Makes a request from a body that contains only the data of the model's one input.
pub fn read_raw_infer(
    data: Buffer,
    model: &str,
    version: &str,
    bytes_max: u64,
) -> Result<(Recycled<InferRequest>, Rendering), Status> {
    check_raw_size(data.len() as u64, bytes_max)?;
    let infer_request = InferRequest {
        model: model.into(),
        version: version.into(),
        raw_input: Some(Box::new(data)),
        ..InferRequest::default()
    };
    Ok((infer_request.into(), Rendering::all(true)))
}

/// Checks the size of a request's JSON part.
pub fn check_json_size(size: u64, bytes_max: u64) -> Result<(), Status> {
    if size <= bytes_max {
        return Ok(());
    }
    Err(Status::invalid(format!(
        "request JSON size of {size} bytes exceeds the maximum allowed input size of {bytes_max} bytes. Use \
         --http-max-input-size to increase the limit."
    )))
}

/// Checks the size of the body of a raw binary request.
pub fn check_raw_size(size: u64, bytes_max: u64) -> Result<(), Status> {
    if size <= bytes_max {
        return Ok(());
    }
    Err(Status::invalid(format!(
        "Raw input has a byte_size ({size} bytes) that exceeds the maximum allowed value of {bytes_max} bytes. Use \
         --http-max-input-size to increase the limit."
    )))
}

fn read_document(text: &InferText<'_>, tail: &mut Tail<'_>, budget: &mut Budget) -> Result<Document, Malformed> {
    let mut document = Document::default();
    let mut reader = Reader::new(text.json)?;
    reader.members(|reader, key| match key.as_ref() {
        b"id" => reader.once(&mut document.id, Reader::name),
        b"parameters" => reader.once(&mut document.request_parameters, read_parameters),
        b"inputs" => reader.once(&mut document.inputs, |reader| read_inputs(reader, text, tail, budget)),
        b"outputs" => reader.once(&mut document.outputs, |reader| read_outputs(reader, text, budget)),
        _ => reader.skip(),
    })?;
    reader.finish()?;
    Ok(document)
}

fn refuse(refused: NoMemory) -> Status {
    Status::no_memory("what a request says", refused)
}

fn read_inputs(
    reader: &mut Reader<'_>,
    text: &InferText<'_>,
    tail: &mut Tail<'_>,
    budget: &mut Budget,
) -> Result<InferInputs, Fault> {
    check_array(reader, "inputs")?;
    let (mut inputs, mut count, max) = (InferInputs::new(), 0, text.tensors_max.inputs);
    reader.elements(|reader| {
        count += 1;
        if count > max {
            return Ok(reader.skip()?);
        }
        budget.need(ITEM_BYTES).map_err(refuse)?;
        let input = read_input(reader, text, tail)?;
        budget.need(input.shape.len() * DIM_BYTES).map_err(refuse)?;
        inputs.push(input);
        Ok(())
    })?;
    check_count(Counted::Inputs, count, max).map_err(Status::from)?;
    Ok(inputs)
}

fn read_outputs(reader: &mut Reader<'_>, text: &InferText<'_>, budget: &mut Budget) -> Result<Wishes, Fault> {
    check_array(reader, "outputs")?;
    let (mut outputs, mut count, max) = (Wishes::default(), 0, text.tensors_max.outputs);
    reader.elements(|reader| {
        count += 1;
        if count > max {
            return Ok(reader.skip()?);
        }
        budget.need(ITEM_BYTES).map_err(refuse)?;
        outputs.push(read_output(reader)?);
        Ok(())
    })?;
    check_count(Counted::Outputs, count, max).map_err(Status::from)?;
    Ok(outputs)
}

fn check_array(reader: &Reader<'_>, name: &str) -> Result<(), Status> {
    if reader.kind() == Kind::Array {
        return Ok(());
    }
    Err(Status::internal(format!("Unable to parse '{name}': {}; '{name}' must be an array", mismatch::ARRAY)))
}

#[cfg(test)]
mod tests;
