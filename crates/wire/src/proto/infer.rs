//! What does a ModelInferRequest say, before anybody asks what it means?

use nerite_tensor::{DataType, Shape};
use prost::Message as _;
use smallvec::SmallVec;

use super::Chain;
use super::chain::Run;
use super::choice::{Choice, read_entry};
use super::contents;
use super::messages::InferTensorContents;
use super::placement::Placement;
use super::read::{Fields, Malformed, Read as _, Value, Wire, text};
use crate::budget::{Budget, NAME_BYTES_MAX};

/// What a parameter, an input, an output or a place of raw bytes takes beside its own bytes, in a vector of twice the length.
const ITEM_BYTES: usize = 1024;
/// What a dimension takes: 8 bytes in a vector of twice the length.
const DIM_BYTES: usize = 16;

/// A ModelInferRequest whose syntax is settled. Its tensors still lie where they arrived.
#[derive(Debug, Default)]
pub struct InferMessage {
    /// Name of the model.
    pub model: String,
    /// Version as the client wrote it.
    pub version: String,
    /// The client's own name for the request.
    pub id: String,
    pub(super) parameters: Vec<(String, Choice)>,
    pub(super) inputs: Vec<InputMessage>,
    pub(super) outputs: Vec<OutputMessage>,
    pub(super) raw: SmallVec<[Run; 2]>,
    /// For all of that, and for the tensors that become of typed contents.
    pub(super) budget: Budget,
}

#[derive(Debug, Default)]
pub(super) struct InputMessage {
    pub(super) name: String,
    /// `None` for a name that is no datatype.
    pub(super) datatype: Option<DataType>,
    pub(super) shape: Shape,
    pub(super) placement: Placement,
    pub(super) contents: Option<InferTensorContents>,
}

#[derive(Debug, Default)]
pub(super) struct OutputMessage {
    pub(super) name: String,
    pub(super) placement: Placement,
}

impl InferMessage {
    /// Reads a message. Fields that are not known are passed over.
    pub fn read(chain: &Chain) -> Result<InferMessage, Malformed> {
        let (mut cursor, mut message) = (chain.cursor(), InferMessage::default());
        while let Some((number, wire)) = cursor.tag()? {
            if wire != Wire::Len || number > 7 {
                cursor.skip_field(number, wire)?;
                continue;
            }
            let len = cursor.length()?;
            message.budget.need(ITEM_BYTES)?;
            if number == 7 {
                message.raw.push(cursor.run(len)?);
                continue;
            }
            let bytes = cursor.contiguous(len)?;
            match number {
                1 => message.model = name(&bytes, "model_name")?,
                2 => message.version = name(&bytes, "model_version")?,
                3 => message.id = name(&bytes, "id")?,
                4 => {
                    message.budget.need(len)?;
                    message.take_parameter(&bytes)?;
                }
                5 => message.inputs.push(InputMessage::read(&bytes, &mut message.budget)?),
                _ => {
                    message.budget.need(len)?;
                    message.outputs.push(OutputMessage::read(&bytes)?);
                }
            }
        }
        Ok(message)
    }

    /// The first input whose datatype does not exist. What its model wants is for others to know.
    pub fn input_of_unknown_datatype(&self) -> Option<&str> {
        self.inputs.iter().find(|input| input.datatype.is_none()).map(|input| input.name.as_str())
    }

    /// The last of several values under one key counts, as in every protobuf map.
    fn take_parameter(&mut self, entry: &[u8]) -> Result<(), Malformed> {
        let (key, choice) = read_entry(entry)?;
        match self.parameters.iter_mut().find(|(known, _)| known == key) {
            Some((_, value)) => *value = choice,
            None => self.parameters.push((key.to_owned(), choice)),
        }
        Ok(())
    }
}

impl InputMessage {
    fn read(bytes: &[u8], budget: &mut Budget) -> Result<InputMessage, Malformed> {
        let (mut fields, mut input) = (Fields::new(bytes), InputMessage::default());
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Len(bytes)) => input.name = name(bytes, "inputs.name")?,
                (2, Value::Len(name)) => input.datatype = DataType::from_name(text(name, "inputs.datatype")?),
                (3, Value::Varint(dim)) => {
                    budget.need(DIM_BYTES)?;
                    input.shape.push(dim as i64);
                }
                (3, Value::Len(dims)) => {
                    budget.need(dims.len().saturating_mul(DIM_BYTES))?;
                    read_packed(dims, &mut input.shape)?;
                }
                (4, Value::Len(entry)) => {
                    budget.need(entry.len())?;
                    input.placement.take(entry)?;
                }
                (5, Value::Len(contents)) => {
                    budget.need(contents::room(contents)?)?;
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
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Len(bytes)) => output.name = name(bytes, "outputs.name")?,
                (2, Value::Len(entry)) => output.placement.take(entry)?,
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

/// What names something. It is said again in answers and errors, so it must not be long.
fn name(bytes: &[u8], field: &'static str) -> Result<String, Malformed> {
    if bytes.len() > NAME_BYTES_MAX {
        return Err(Malformed::LongName { field, len: bytes.len() });
    }
    text(bytes, field).map(str::to_owned)
}
