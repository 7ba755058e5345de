//! How is a decoded ModelInferRequest turned into an InferRequest?

use std::mem::take;

use nerite_memory::Buffer;
use nerite_request::names::first_repeated;
use nerite_request::{
    InferInput, InferRequest, InferRequestedOutput, Parameters, Prefix, Recycled, SequenceId, Source, Status,
};
use nerite_tensor::{DataType, ELEMENTS_MAX, Name, ShapeError, byte_size, show_shape};

use super::InferMessage;
use super::chain::{Run, place};
use super::choice::Choice;
use super::contents;
use super::infer::{InputMessage, OutputMessage};

/// The longest correlation id that is text, in bytes.
const SEQUENCE_ID_BYTES_MAX: usize = 128;
const EMPTY_FINAL: &str = "triton_enable_empty_final_response";

impl InferMessage {
    /// Checks the message and moves its content to an [`InferRequest`]. `forward` may add parameters from the call's metadata. It runs after the request's
    /// own parameters and before its tensors, so that errors come in that order.
    pub fn take_infer_request(
        &mut self,
        forward: impl FnOnce(&mut Parameters) -> Result<(), Status>,
    ) -> Result<Recycled<InferRequest>, Status> {
        // The budget also covers what is allocated here. It is kept until the message is dropped.
        let InferMessage { model, version, id, parameters, inputs, outputs, raw, budget: _ } = self;
        let mut infer_request = Recycled::<InferRequest>::new();
        (infer_request.model, infer_request.version, infer_request.id) = (take(model), take(version), take(id));
        for (key, choice) in take(parameters) {
            take_parameter(&mut infer_request, key, choice)?;
        }
        forward(&mut infer_request.parameters)?;
        infer_request.inputs.reserve_exact(inputs.len());
        let mut inline = Inline { any_raw: !raw.is_empty(), raw: raw.drain(..) };
        for at in 0..inputs.len() {
            let Some(input) = inputs.get_mut(at) else { break };
            match take_input(&infer_request, &mut inline, input) {
                Ok(input) => infer_request.inputs.push(input),
                Err(status) => return Err(repeated(&infer_request, inputs.get(at..)).unwrap_or(status)),
            }
        }
        inputs.clear();
        infer_request.outputs.reserve_exact(outputs.len());
        for output in outputs.drain(..) {
            match take_output(output) {
                Ok(output) => infer_request.outputs.push(output),
                Err(status) => return Err(repeated(&infer_request, None).unwrap_or(status)),
            }
        }
        Ok(infer_request)
    }
}

fn wrong_type(key: &str, expected: &str) -> Status {
    Status::invalid(format!("invalid value type for '{key}' parameter, expected {expected}."))
}

fn take_parameter(infer_request: &mut InferRequest, key: String, choice: Choice) -> Result<(), Status> {
    match key.as_str() {
        "sequence_id" => infer_request.sequence.id = sequence_id(choice)?,
        "sequence_start" => infer_request.sequence.start = flag(&key, choice)?,
        "sequence_end" => infer_request.sequence.end = flag(&key, choice)?,
        "priority" => {
            infer_request.priority = match choice {
                Choice::Uint(priority) => priority,
                Choice::Int(priority) => u64::try_from(priority)
                    .map_err(|_| Status::invalid("invalid value for 'priority', expected value >= 0."))?,
                _ => return Err(wrong_type(&key, "int64_param or uint64_param")),
            }
        }
        "timeout" => match choice {
            Choice::Int(timeout_us) => infer_request.timeout_us = timeout_us as u64,
            _ => return Err(wrong_type(&key, "int64_param")),
        },
        EMPTY_FINAL => infer_request.empty_final = flag(&key, choice)?,
        _ if key.starts_with("triton_") => {
            return Err(Status::invalid(format!(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with 'triton_' are allowed: {EMPTY_FINAL}"
            )));
        }
        _ => match choice.into_parameter() {
            Some(value) => infer_request.parameters.insert(key, value),
            None => return Err(wrong_type(&key, "int64_param, bool_param, or string_param")),
        },
    }
    Ok(())
}

fn flag(key: &str, choice: Choice) -> Result<bool, Status> {
    match choice {
        Choice::Bool(value) => Ok(value),
        _ => Err(wrong_type(key, "bool_param")),
    }
}

fn sequence_id(choice: Choice) -> Result<SequenceId, Status> {
    match choice {
        Choice::Int(0) => Ok(SequenceId::None),
        Choice::Int(id) => Ok(SequenceId::Number(id as u64)),
        Choice::String(id) if id.is_empty() => Ok(SequenceId::None),
        Choice::String(id) if id.len() > SEQUENCE_ID_BYTES_MAX => {
            Err(Status::unsupported("string correlation ID cannot be longer than 128 characters"))
        }
        Choice::String(id) => Ok(SequenceId::Text(id.into())),
        _ => Err(wrong_type("sequence_id", "int64_param or string_param")),
    }
}

/// The raw entries that are not yet assigned to an input.
struct Inline<'m> {
    any_raw: bool,
    raw: smallvec::Drain<'m, [Run; 2]>,
}

/// The error for the first input that is named twice. `rest` are the inputs that are not in the request yet. Triton adds all inputs to its request before it
/// reads where their bytes are, so this is its error whatever else is wrong with the tensors.
#[cold]
fn repeated(infer_request: &InferRequest, rest: Option<&[InputMessage]>) -> Option<Status> {
    let taken = infer_request.inputs.iter().map(|input| &input.name);
    let names: Vec<&Name> = taken.chain(rest.unwrap_or_default().iter().map(|input| &input.name)).collect();
    let name = names.get(first_repeated(&names, |name| name)?)?;
    Some(Prefix(&infer_request.id).repeated_input(name))
}

/// The name stays in the message if there is an error.
fn take_input(
    infer_request: &InferRequest,
    inline: &mut Inline<'_>,
    input: &mut InputMessage,
) -> Result<InferInput, Status> {
    let InputMessage { name, datatype, shape, placement, contents } = input;
    let (datatype, shape) = (*datatype, take(shape));
    check_size(name, datatype, &shape)?;
    let model = &infer_request.model;
    let refuse = |text: String| Err(Status::invalid(text));
    let source = match (placement.region(name)?, contents.take()) {
        (Some(_), Some(_)) => {
            return refuse(format!(
                "unexpected 'content' provided when using shared memory for input tensor '{name}' for model '{model}'"
            ));
        }
        (Some(region), None) => Source::Region(region),
        (None, Some(_)) if inline.any_raw => {
            return refuse(format!(
                "contents field must not be specified when using raw_input_contents for '{name}' for model '{model}'"
            ));
        }
        (None, Some(contents)) => Source::Inline(contents::to_buffer(*contents, datatype, name, model)?),
        (None, None) => match inline.raw.next() {
            Some(run) => Source::Inline(place_raw(run, datatype, name)?),
            None => {
                return refuse(format!(
                    "unable to find data for input tensor '{name}' for model '{model}' in request."
                ));
            }
        },
    };
    let Some(datatype) = datatype else {
        return Err(wrong_datatype(&infer_request.id, model, name, "one of its own"));
    };
    Ok(InferInput { name: take(name), datatype, shape, source })
}

/// The error for an input whose datatype does not exist. `expected` is the datatype in the model's configuration.
pub fn wrong_datatype(id: &str, model: &str, input: &str, expected: &str) -> Status {
    let id = if id.is_empty() { "<id_unknown>" } else { id };
    Status::invalid(format!(
        "[request id: {id}] inference input '{input}' data-type is '<invalid>', but model '{model}' expects {expected}"
    ))
}

/// Checks that the number of elements fits into 64 bits. Variable dimensions are not checked here.
fn check_size(name: &str, datatype: Option<DataType>, shape: &[i64]) -> Result<(), Status> {
    let Some(datatype) = datatype else { return Ok(()) };
    let Err(fault) = byte_size(datatype, shape) else { return Ok(()) };
    let text = match fault {
        ShapeError::Negative { .. } if shape.iter().all(|dim| *dim >= -1) => return Ok(()),
        ShapeError::Negative { .. } if datatype == DataType::Bytes => {
            format!("tensor '{name}' contains an invalid dimension in shape {}", show_shape(shape))
        }
        ShapeError::Negative { .. } => format!("tensor '{name}' contains an invalid dimension {}", show_shape(shape)),
        ShapeError::TooManyElements => {
            format!("element count for tensor '{name}' exceeds maximum size of {ELEMENTS_MAX}")
        }
        ShapeError::TooManyBytes { .. } => {
            format!("byte size for tensor '{name}' exceeds maximum size of {ELEMENTS_MAX}")
        }
    };
    Err(Status::invalid(text))
}

fn place_raw(run: Run, datatype: Option<DataType>, name: &str) -> Result<Buffer, Status> {
    let placed = place(run, datatype.map_or(1, DataType::align));
    placed.map_err(|refused| Status::no_memory(format_args!("input '{name}'"), refused))
}

fn take_output(output: OutputMessage) -> Result<InferRequestedOutput, Status> {
    let OutputMessage { name, mut placement } = output;
    let session = placement.session();
    let region = if session.is_some() { None } else { placement.region(&name)? };
    let classes = placement.classes()?;
    if (region.is_some() || session.is_some()) && classes > 0 {
        return Err(Status::invalid("output can't set both 'shared_memory_region' and 'classification'"));
    }
    Ok(InferRequestedOutput { name, region, session, classes })
}
