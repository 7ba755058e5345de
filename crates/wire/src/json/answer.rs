//! How is a response sent as JSON and binary tensors?

use bytes::Bytes;
use nerite_memory::{Buffer, MemoryReservation, NoMemory, Reason};
use nerite_request::names::ByName;
use nerite_request::{InferResponse, LeaseNotice, Output, Parameter, Recycled, Status};
use nerite_tensor::strings::{self, StringsError};
use nerite_tensor::{DataType, element_count};

use super::infer::Rendering;
use super::limits::{RESERVED_BYTES_MIN, TEXT_GROWTH};
use super::write::Writer;

/// A response, ready to be sent: first the JSON text, then the binary tensors, which are not copied.
#[derive(Debug)]
pub struct Answer {
    /// The JSON text.
    pub head: Bytes,
    /// The binary outputs that have bytes, in the order of the text. If it is empty, the text is the whole body.
    pub tail: Vec<Buffer>,
}

/// Renders a response that is not an error. Binary outputs are not copied.
pub fn write_answer(mut response: Recycled<InferResponse>, rendering: &Rendering) -> Result<Answer, Status> {
    let InferResponse { model, version, id, parameters, outputs, lease_notices: notices, .. } = &mut *response;
    let mut writer = Writer::kept();
    let mut tail = Vec::new();
    let mut failure = None;
    let places = ByName::new(notices, |notice: &LeaseNotice| &notice.output);
    writer.object(|w| {
        if !id.is_empty() {
            w.key("id").string(id.as_bytes());
        }
        w.key("model_name").string(model.as_bytes());
        w.key("model_version").string(version.as_bytes());
        if !parameters.is_empty() {
            w.key("parameters").object(|w| {
                parameters.iter().for_each(|(key, value)| write_parameter(w.key(key), value));
            });
        }
        w.key("outputs").array(|w| {
            for output in outputs.drain(..) {
                let binary = rendering.is_binary(&output.name);
                let place = places.find(&output.name);
                if let Err(status) = write_output(w, output, place, binary, &mut tail) {
                    failure.get_or_insert(status);
                }
            }
        });
    });
    if let Some(status) = failure {
        return Err(status);
    }
    notices.iter().for_each(LeaseNotice::set_sent);
    Ok(Answer { head: writer.into_shared(), tail })
}

pub fn write_parameter(w: &mut Writer, value: &Parameter) {
    match value {
        Parameter::Bool(value) => w.bool(*value),
        Parameter::Int(value) => w.signed(*value),
        Parameter::String(value) => w.string(value.as_bytes()),
        Parameter::Double(value) => w.double(*value),
    }
}

fn write_output(
    w: &mut Writer,
    output: Output,
    place: Option<&LeaseNotice>,
    binary: bool,
    tail: &mut Vec<Buffer>,
) -> Result<(), Status> {
    let mut outcome = Ok(());
    w.object(|w| {
        w.key("name").string(output.name.as_bytes());
        w.key("datatype").string(output.datatype.name().as_bytes());
        w.key("shape").array(|w| output.shape.iter().for_each(|dim| w.signed(*dim)));
        if let Some(place) = place {
            w.key("parameters").object(|w| write_place(w, place));
        }
        if output.placed {
            return;
        }
        if !binary {
            w.key("data");
            outcome = write_data(w, &output);
            return;
        }
        w.key("parameters").object(|w| w.key("binary_data_size").unsigned(output.data.len() as u64));
        if !output.data.is_empty() {
            tail.push(output.data);
        }
    });
    outcome
}

/// Writes a place with the parameters that clients use to name places.
fn write_place(w: &mut Writer, place: &LeaseNotice) {
    w.key("shared_memory_region").string(place.region.name.as_bytes());
    w.key("shared_memory_offset").unsigned(place.region.offset);
    w.key("shared_memory_byte_size").unsigned(place.region.byte_size);
}

/// Writes all elements as one flat array.
fn write_data(w: &mut Writer, output: &Output) -> Result<(), Status> {
    write_elements(w, output, |w, elements| w.array(elements))
}

/// Writes all elements. `bracket` writes the brackets around them, if any.
pub fn write_elements(
    w: &mut Writer,
    output: &Output,
    bracket: impl FnOnce(&mut Writer, &mut dyn FnMut(&mut Writer)),
) -> Result<(), Status> {
    let wrong_size =
        || Status::internal(format!("output tensor shape does not match size of output for '{}'", output.name));
    if let half @ (DataType::Fp16 | DataType::Bf16) = output.datatype {
        return Err(Status::invalid(format!(
            "sending {half} data via JSON is not supported. Please use the binary data format for output"
        )));
    }
    let count = element_count(&output.shape).map_err(|_| wrong_size())?;
    let private = match output.data.private_bytes() {
        Some(_) => output.data.clone(),
        // Another process may write to these bytes, or they are on a device.
        None => output.data.try_private(Reason::InlineResponse).map_err(|refused| refuse(output, refused))?,
    };
    let bytes = private.private_bytes().expect("`to_private` made it this process's own");
    let _reservation = if bytes.len() < RESERVED_BYTES_MIN {
        MemoryReservation::none()
    } else {
        MemoryReservation::take(bytes.len().saturating_mul(TEXT_GROWTH)).map_err(|refused| refuse(output, refused))?
    };
    let Some(size) = output.datatype.size() else {
        let extents = strings::extents(&private, count).map_err(|fault| match fault {
            StringsError::NoMemory(refused) => refuse(output, refused),
            _ => wrong_size(),
        })?;
        w.reserve(bytes.len());
        bracket(w, &mut |w| extents.iter().for_each(|extent| w.string(&bytes[extent.offset()..extent.end()])));
        return Ok(());
    };
    if count.checked_mul(size as u64) != Some(bytes.len() as u64) {
        return Err(wrong_size());
    }
    w.reserve(bytes.len());
    bracket(w, &mut |w| write_numbers(w, output.datatype, bytes));
    Ok(())
}

fn refuse(output: &Output, refused: NoMemory) -> Status {
    let (name, len) = (&output.name, output.data.len());
    Status::no_memory(format_args!("the text of output '{name}' of {len} bytes"), refused)
}

fn write_numbers(w: &mut Writer, datatype: DataType, bytes: &[u8]) {
    match datatype {
        DataType::Bool => each(bytes, |[byte]| w.bool(byte != 0)),
        DataType::Uint8 => each(bytes, |[byte]| w.unsigned(byte.into())),
        DataType::Uint16 => each(bytes, |b| w.unsigned(u16::from_le_bytes(b).into())),
        DataType::Uint32 => each(bytes, |b| w.unsigned(u32::from_le_bytes(b).into())),
        DataType::Uint64 => each(bytes, |b| w.unsigned(u64::from_le_bytes(b))),
        DataType::Int8 => each(bytes, |b| w.signed(i8::from_le_bytes(b).into())),
        DataType::Int16 => each(bytes, |b| w.signed(i16::from_le_bytes(b).into())),
        DataType::Int32 => each(bytes, |b| w.signed(i32::from_le_bytes(b).into())),
        DataType::Int64 => each(bytes, |b| w.signed(i64::from_le_bytes(b))),
        DataType::Fp32 => each(bytes, |b| w.double(f32::from_le_bytes(b).into())),
        DataType::Fp64 => each(bytes, |b| w.double(f64::from_le_bytes(b))),
        // The caller has refused 16-bit floats and written strings.
        DataType::Fp16 | DataType::Bf16 | DataType::Bytes => {}
    }
}

fn each<const N: usize>(bytes: &[u8], mut write: impl FnMut([u8; N])) {
    let (cells, _) = bytes.as_chunks::<N>();
    for cell in cells {
        write(*cell);
    }
}

#[cfg(test)]
mod tests;
