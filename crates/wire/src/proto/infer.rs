//! How is a ModelInferRequest decoded, before its meaning is checked?

use std::cell::RefCell;
use std::thread::LocalKey;

use nerite_request::limits::{
    Counted, DIMS_MAX, NAME_BYTES_MAX, PARAMETERS_MAX, TENSOR_PARAMETERS_MAX, TensorsMax, check_count,
};
use nerite_request::names::NameTable;
use nerite_request::{FreeList, Recycle, Recycled, clear_list};
use nerite_tensor::{DataType, Name, Shape};
use prost::Message as _;
use smallvec::SmallVec;

use super::Chain;
use super::chain::{Cursor, Run};
use super::choice::{Choice, read_entry};
use super::contents;
use super::messages::InferTensorContents;
use super::placement::Placement;
use super::read::{Fields, Malformed, Read as _, Value, Wire, text};
use crate::budget::Budget;

/// Memory for a parameter, an input, an output or the pieces of a raw entry without its own bytes, in a vector with twice the capacity.
const ITEM_BYTES: usize = 1024;
/// Memory for a dimension: 8 bytes in a vector with twice the capacity.
const DIM_BYTES: usize = 16;

thread_local! {
    static FREE: FreeList<InferMessage> = const { RefCell::new(Vec::new()) };
}

/// A ModelInferRequest with valid syntax. Its tensors are still in the pieces that arrived.
#[derive(Debug, Default)]
pub struct InferMessage {
    /// Name of the model.
    pub model: Name,
    /// Version as the client sent it.
    pub version: Name,
    /// The client's id of the request.
    pub id: Name,
    pub(super) parameters: Vec<(String, Choice)>,
    pub(super) inputs: SmallVec<[InputMessage; 2]>,
    pub(super) outputs: SmallVec<[OutputMessage; 2]>,
    pub(super) raw: SmallVec<[Run; 2]>,
    /// Memory reserved for the fields above, and for the tensors that are converted from typed contents.
    pub(super) budget: Budget,
}

#[derive(Debug, Default)]
pub(super) struct InputMessage {
    pub(super) name: Name,
    /// `None` if the datatype does not exist.
    pub(super) datatype: Option<DataType>,
    pub(super) shape: Shape,
    pub(super) placement: Placement,
    /// Boxed, because it is rarely set and large.
    pub(super) contents: Option<Box<InferTensorContents>>,
}

#[derive(Debug, Default)]
pub(super) struct OutputMessage {
    pub(super) name: Name,
    pub(super) placement: Placement,
}

impl InferMessage {
    /// The timeout of the request in microseconds; 0 if it has none, or an invalid one.
    pub fn timeout_us(&self) -> u64 {
        let timeout = self.parameters.iter().rev().find(|(key, _)| key == "timeout");
        match timeout {
            Some((_, Choice::Int(timeout_us))) => *timeout_us as u64,
            _ => 0,
        }
    }

    /// Reads a message with the default limits. Unknown fields are skipped.
    pub fn read(chain: &Chain) -> Result<Recycled<InferMessage>, Malformed> {
        InferMessage::read_for(chain, |_, _| Ok(TensorsMax::default()))
    }

    /// As [`InferMessage::read`]. `tensors_max` gives the limits for the model of that name and version. It is called only if the message exceeds the
    /// limits that all models have. Its error ends the decoding. Items beyond a limit are counted, but not kept.
    pub fn read_for<E: From<Malformed>>(
        chain: &Chain,
        tensors_max: impl Fn(&str, &str) -> Result<TensorsMax, E>,
    ) -> Result<Recycled<InferMessage>, E> {
        let (mut cursor, mut message) = (chain.cursor(), Recycled::<InferMessage>::new());
        let mut counts = Counts::default();
        let mut names = NameTable::new();
        while let Some((number, wire)) = cursor.tag()? {
            if wire != Wire::Len || number > 7 {
                cursor.skip_field(number, wire)?;
                continue;
            }
            let len = cursor.length()?;
            if !counts.take(number, &message, &tensors_max)? {
                cursor.skip(len)?;
                continue;
            }
            message.take_field(number, len, &mut cursor, &mut names)?;
        }
        counts.check()?;
        Ok(message)
    }

    /// Reads the field of that number and length, at which the cursor is.
    fn take_field(
        &mut self,
        number: u32,
        len: usize,
        cursor: &mut Cursor<'_>,
        names: &mut NameTable,
    ) -> Result<(), Malformed> {
        self.budget.need(ITEM_BYTES)?;
        if number == 7 {
            self.raw.push(cursor.run(len)?);
            return Ok(());
        }
        let bytes = cursor.contiguous(len)?;
        match number {
            1 => self.model = name(&bytes, "model_name")?,
            2 => self.version = name(&bytes, "model_version")?,
            3 => self.id = name(&bytes, "id")?,
            4 => {
                self.budget.need(len)?;
                self.take_parameter(&bytes, names)?;
            }
            5 => self.inputs.push(InputMessage::read(&bytes, &mut self.budget)?),
            _ => {
                self.budget.need(len)?;
                self.outputs.push(OutputMessage::read(&bytes)?);
            }
        }
        Ok(())
    }

    /// The first input whose datatype does not exist. This layer does not know the model's datatype.
    pub fn input_of_unknown_datatype(&self) -> Option<&str> {
        self.inputs.iter().find(|input| input.datatype.is_none()).map(|input| input.name.as_str())
    }

    /// If a key is repeated, its last value counts, as in every protobuf map.
    fn take_parameter(&mut self, entry: &[u8], names: &mut NameTable) -> Result<(), Malformed> {
        let (key, choice) = read_entry(entry)?;
        if let Some(at) = names.find(&self.parameters, |(known, _)| known, key) {
            self.parameters[at].1 = choice;
        } else {
            self.parameters.push((key.to_owned(), choice));
            names.added(&self.parameters, |(known, _)| known);
        }
        Ok(())
    }
}

impl Recycle for InferMessage {
    fn clear(&mut self) {
        let InferMessage { model, version, id, parameters, inputs, outputs, raw, budget } = self;
        for name in [model, version, id] {
            *name = Name::default();
        }
        *parameters = Vec::new();
        clear_list(inputs);
        clear_list(outputs);
        clear_list(raw);
        *budget = Budget::new();
    }

    fn free_list() -> &'static LocalKey<FreeList<InferMessage>> {
        &FREE
    }
}

/// How many fields of each kind there are, and how many may be kept.
#[derive(Default)]
struct Counts {
    parameters: usize,
    inputs: usize,
    outputs: usize,
    raw: usize,
    max: TensorsMax,
}

impl Counts {
    /// Counts a field of that number. Returns whether it is to be kept.
    fn take<E>(
        &mut self,
        number: u32,
        message: &InferMessage,
        tensors_max: impl Fn(&str, &str) -> Result<TensorsMax, E>,
    ) -> Result<bool, E> {
        let (count, max) = match number {
            4 => (&mut self.parameters, PARAMETERS_MAX),
            5 => (&mut self.inputs, self.max.inputs),
            6 => (&mut self.outputs, self.max.outputs),
            7 => (&mut self.raw, self.max.inputs),
            _ => return Ok(true),
        };
        *count += 1;
        if *count <= max {
            return Ok(true);
        }
        if number == 4 || *count > max + 1 {
            return Ok(false);
        }
        // The first item beyond the limit. Encoders usually write the model's name first, so it is known by now.
        if !message.model.is_empty() {
            self.max = tensors_max(&message.model, &message.version)?;
        }
        Ok(match number {
            5 => self.inputs <= self.max.inputs,
            6 => self.outputs <= self.max.outputs,
            _ => self.raw <= self.max.inputs,
        })
    }

    fn check(&self) -> Result<(), Malformed> {
        check_count(Counted::Parameters, self.parameters, PARAMETERS_MAX)?;
        check_count(Counted::Inputs, self.inputs, self.max.inputs)?;
        check_count(Counted::Outputs, self.outputs, self.max.outputs)?;
        Ok(check_count(Counted::RawContents, self.raw, self.max.inputs)?)
    }
}

impl InputMessage {
    fn read(bytes: &[u8], budget: &mut Budget) -> Result<InputMessage, Malformed> {
        let (mut fields, mut input) = (Fields::new(bytes), InputMessage::default());
        let mut parameters = 0;
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Len(bytes)) => {
                    budget.need(bytes.len())?;
                    input.name = name(bytes, "inputs.name")?;
                }
                (2, Value::Len(name)) => input.datatype = DataType::from_name(text(name, "inputs.datatype")?),
                (3, Value::Varint(dim)) => {
                    check_count(Counted::Dims, input.shape.len() + 1, DIMS_MAX)?;
                    budget.need(DIM_BYTES)?;
                    input.shape.push(dim as i64);
                }
                (3, Value::Len(dims)) => {
                    // The top bit is clear only in the last byte of each number.
                    let count = dims.iter().filter(|byte| **byte < 0x80).count();
                    check_count(Counted::Dims, input.shape.len() + count, DIMS_MAX)?;
                    budget.need(count * DIM_BYTES)?;
                    read_packed(dims, &mut input.shape)?;
                }
                (4, Value::Len(entry)) => {
                    parameters += 1;
                    check_count(Counted::TensorParameters, parameters, TENSOR_PARAMETERS_MAX)?;
                    budget.need(entry.len())?;
                    input.placement.take(entry)?;
                }
                (5, Value::Len(contents)) => {
                    budget.need(contents::decoded_bytes_max(contents)?)?;
                    let known = input.contents.get_or_insert_default();
                    known.merge(contents).map_err(|_| Malformed::Contents)?;
                }
                _ => {}
            }
        }
        Ok(input)
    }
}

impl OutputMessage {
    fn read(bytes: &[u8]) -> Result<OutputMessage, Malformed> {
        let (mut fields, mut output) = (Fields::new(bytes), OutputMessage::default());
        let mut parameters = 0;
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Len(bytes)) => output.name = name(bytes, "outputs.name")?,
                (2, Value::Len(entry)) => {
                    parameters += 1;
                    check_count(Counted::TensorParameters, parameters, TENSOR_PARAMETERS_MAX)?;
                    output.placement.take(entry)?;
                }
                _ => {}
            }
        }
        Ok(output)
    }
}

fn read_packed(bytes: &[u8], shape: &mut Shape) -> Result<(), Malformed> {
    let mut rest = Fields::new(bytes);
    while rest.left() > 0 {
        shape.push(rest.varint()? as i64);
    }
    Ok(())
}

/// A name. It is repeated in responses and errors, so its length is limited.
fn name(bytes: &[u8], field: &'static str) -> Result<Name, Malformed> {
    if bytes.len() > NAME_BYTES_MAX {
        return Err(Malformed::LongName { field, len: bytes.len() });
    }
    text(bytes, field).map(Name::from)
}
