//! How are a tensor's JSON values converted to its bytes?

use nerite_memory::{Buffer, GrowableBuffer, NoMemory, Slot};
use nerite_request::{Code, Status};
use nerite_tensor::{DataType, ELEMENTS_MAX, Shape, ShapeError, byte_size, element_count, show_shape, strings};

use super::fault::{Fault, explained, mismatch, prefixed};
use super::lex::{Kind, Reader};
use super::limits::DATA_DEPTH_MAX;
use super::value::abridged;

/// What a request declares about a tensor whose values are in the JSON text.
pub struct Claim<'c> {
    pub name: &'c str,
    /// `None` if the request's datatype does not exist.
    pub datatype: Option<DataType>,
    pub shape: &'c Shape,
    /// The most bytes that the tensor may have.
    pub bytes_max: u64,
}

/// Reads the array of values at `reader` into the bytes of the tensor that `claim` describes.
pub fn read_tensor(reader: &mut Reader<'_>, claim: &Claim<'_>) -> Result<Buffer, Fault> {
    let elements = claim.elements()?;
    if elements == 0 {
        // Like Triton, this does not check the values of an empty tensor.
        reader.skip()?;
        return Ok(Buffer::empty());
    }
    if reader.kind() != Kind::Array {
        let status = Status::internal(format!("Unable to parse 'data': {}", mismatch::ARRAY));
        return Err(explained(status, format_args!("'data' of input '{}'", abridged(claim.name))).into());
    }
    read_values(reader, claim, elements)
}

/// Reads `elements` values, which are nested in arrays, or a single value without an array.
pub fn read_values(reader: &mut Reader<'_>, claim: &Claim<'_>, elements: u64) -> Result<Buffer, Fault> {
    if claim.datatype == Some(DataType::Bytes) {
        return read_strings(reader, claim);
    }
    let size = claim.fixed_size(elements)?;
    claim.check_size(size as u64)?;
    let datatype = claim.fixed_datatype()?;
    // The text has at least one byte for each value. So a shape that is larger than the data reserves no memory.
    let element_size = datatype.size().unwrap_or(1);
    let capacity = size.min(reader.text_len().saturating_mul(element_size));
    let mut slot = Slot::try_heap(capacity)
        .map_err(|refused| Status::no_memory(format_args!("input '{}'", claim.name), refused))?;
    let out = slot.private_bytes_mut().expect("a heap slot is this process's own");
    let found = read_numbers(reader, datatype, out).map_err(|fault| match fault {
        Fault::Refused(status) => claim.explained(prefixed("Unable to parse 'data': ", status)).into(),
        malformed @ Fault::Malformed(_) => malformed,
    })?;
    if found < elements {
        return Err(Status::internal("Failed to parse 'data' field: shape does not match true shape").into());
    }
    Ok(slot.filled().into_buffer())
}

impl Claim<'_> {
    fn elements(&self) -> Result<u64, Status> {
        element_count(self.shape).map_err(|fault| {
            let what = match fault {
                ShapeError::Negative { .. } => "contains one or more invalid dimensions".to_string(),
                ShapeError::TooManyElements | ShapeError::TooManyBytes { .. } => {
                    format!("causes total element count to exceed maximum size of {ELEMENTS_MAX}")
                }
            };
            Status::invalid(format!("invalid shape for input '{}': shape {} {what}", self.name, show_shape(self.shape)))
        })
    }

    fn fixed_size(&self, elements: u64) -> Result<usize, Status> {
        let Some(datatype) = self.datatype else { return Ok(0) };
        byte_size(datatype, self.shape).map(Option::unwrap_or_default).map_err(|_| {
            Status::invalid(format!(
                "byte size overflow for input '{}': element count ({elements}) * data type size ({}) exceeds maximum \
                 allowed size ({ELEMENTS_MAX})",
                self.name,
                datatype.size().unwrap_or_default()
            ))
        })
    }

    /// Adds the input's name to the error for a value of the wrong type.
    fn explained(&self, status: Status) -> Status {
        explained(status, format_args!("each value of input '{}'", abridged(self.name)))
    }

    fn check_size(&self, size: u64) -> Result<(), Status> {
        if size <= self.bytes_max {
            return Ok(());
        }
        Err(Status::invalid(format!(
            "JSON input '{}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of {} bytes. Use \
             --http-max-input-size to increase the limit.",
            self.name, self.bytes_max
        )))
    }

    fn fixed_datatype(&self) -> Result<DataType, Status> {
        match self.datatype {
            None => Err(Status::invalid(format!("invalid datatype for input {}", self.name))),
            Some(half @ (DataType::Fp16 | DataType::Bf16)) => Err(Status::invalid(format!(
                "receiving {half} data via JSON is not supported. Please use the binary data format for input {}",
                self.name
            ))),
            Some(datatype) => Ok(datatype),
        }
    }
}

/// Reads BYTES elements into their wire form. The model's checks compare their number with the shape, as in Triton.
fn read_strings(reader: &mut Reader<'_>, claim: &Claim<'_>) -> Result<Buffer, Fault> {
    let refuse = |refused: NoMemory| Status::no_memory(format_args!("input '{}'", claim.name), refused);
    let mut out = GrowableBuffer::with_capacity(0).map_err(refuse)?;
    each_scalar(reader, |reader| {
        if reader.kind() != Kind::String {
            let status = Status::internal(format!("Unable to parse JSON bytes array: {}", mismatch::STRING));
            return Err(claim.explained(status).into());
        }
        let text = reader.raw_string()?;
        let length = strings::length_word(&text);
        let length = length.ok_or_else(|| Status::invalid("a string of 4 GiB and more cannot be sent"))?;
        Ok(out.push(&length).and_then(|()| out.push(&text)).map_err(refuse)?)
    })?;
    claim.check_size(out.len() as u64)?;
    Ok(out.finish())
}

fn read_numbers(reader: &mut Reader<'_>, datatype: DataType, out: &mut [u8]) -> Result<u64, Fault> {
    // Integers too large for a small type lose their high bits, as in Triton.
    match datatype {
        DataType::Bool => fill(reader, out, |r| r.bool().map(|value| [u8::from(value)])),
        DataType::Uint8 => fill(reader, out, |r| r.unsigned().map(|value| (value as u8).to_le_bytes())),
        DataType::Uint16 => fill(reader, out, |r| r.unsigned().map(|value| (value as u16).to_le_bytes())),
        DataType::Uint32 => fill(reader, out, |r| r.unsigned().map(|value| (value as u32).to_le_bytes())),
        DataType::Uint64 => fill(reader, out, |r| r.unsigned().map(u64::to_le_bytes)),
        DataType::Int8 => fill(reader, out, |r| r.signed().map(|value| (value as i8).to_le_bytes())),
        DataType::Int16 => fill(reader, out, |r| r.signed().map(|value| (value as i16).to_le_bytes())),
        DataType::Int32 => fill(reader, out, |r| r.signed().map(|value| (value as i32).to_le_bytes())),
        DataType::Int64 => fill(reader, out, |r| r.signed().map(i64::to_le_bytes)),
        DataType::Fp32 => fill(reader, out, |r| r.double().map(|value| (value as f32).to_le_bytes())),
        DataType::Fp64 => fill(reader, out, |r| r.double().map(f64::to_le_bytes)),
        DataType::Fp16 | DataType::Bf16 | DataType::Bytes => Ok(0),
    }
}

/// Fills `out` with values. Returns how many there were.
fn fill<'t, const N: usize>(
    reader: &mut Reader<'t>,
    out: &mut [u8],
    read: impl Fn(&mut Reader<'t>) -> Result<[u8; N], Fault>,
) -> Result<u64, Fault> {
    let mut cells = out.chunks_exact_mut(N);
    let mut found = 0;
    each_scalar(reader, |reader| {
        let Some(cell) = cells.next() else {
            return Err(Status::internal("Shape does not match true shape of 'data' field").into());
        };
        cell.copy_from_slice(&read(reader)?);
        found += 1;
        Ok(())
    })?;
    Ok(found)
}

/// Calls `each` at every value in the nested arrays, in row-major order.
fn each_scalar<'t>(
    reader: &mut Reader<'t>,
    mut each: impl FnMut(&mut Reader<'t>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut depth = 0;
    loop {
        if reader.kind() == Kind::Array {
            depth += 1;
            if depth > DATA_DEPTH_MAX {
                return Err(too_deep().into());
            }
            if !reader.open_is_empty(b']') {
                continue;
            }
            depth -= 1;
        } else {
            each(reader)?;
        }
        while depth > 0 && !reader.follows(b']')? {
            depth -= 1;
        }
        if depth == 0 {
            return Ok(());
        }
    }
}

fn too_deep() -> Status {
    Status::new(Code::InvalidArg, format!("JSON nesting depth exceeds maximum allowed limit ({DATA_DEPTH_MAX})"))
}
