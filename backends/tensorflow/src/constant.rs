//! What is the value of a constant in a graph?

use nerite_backend_sdk::DataType;
use tract_tensorflow::prelude::*;
use tract_tensorflow::tfpb::tensorflow::TensorProto;

use crate::attributes::of_number;
use crate::fact::Fact;
use crate::limits::{KNOWN_MAX, RUN_BYTES_MAX};
use crate::tensors::{blobs, to_engine};

/// Its datatype and shape, and its elements if they are few integers.
pub fn fact(tensor: &TensorProto) -> Result<Fact, String> {
    let datatype = of_number(tensor.dtype)?;
    let shape = tensor.tensor_shape.as_ref().map(|shape| shape.dim.as_slice()).unwrap_or_default();
    let dims = shape
        .iter()
        .map(|dim| usize::try_from(dim.size).map_err(|_| format!("its dimension {} is negative", dim.size)));
    let mut fact = Fact::new(datatype, dims.collect::<Result<_, _>>()?);
    fact.text_max = tensor.string_val.iter().map(|text| text.len() as u64).max().unwrap_or(0);
    match (fact.bytes(), fact.volume()) {
        (Some(bytes), Some(volume)) if bytes <= RUN_BYTES_MAX => {
            if matches!(datatype, DataType::Int32 | DataType::Int64) && volume <= KNOWN_MAX {
                fact.known = Some(whole_numbers(tensor, datatype, volume)?);
            }
            Ok(fact)
        }
        _ => Err(format!("its shape {:?} has more than {RUN_BYTES_MAX} bytes", fact.dims)),
    }
}

fn whole_numbers(tensor: &TensorProto, datatype: DataType, volume: usize) -> Result<Vec<i64>, String> {
    let bytes = bytes(tensor, datatype, volume)?;
    Ok(if datatype == DataType::Int64 {
        bytes.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
    } else {
        bytes.as_chunks::<4>().0.iter().map(|bytes| i64::from(i32::from_le_bytes(*bytes))).collect()
    })
}

/// The constant as a tensor of the engine.
pub fn to_tensor(tensor: &TensorProto) -> Result<Tensor, String> {
    let fact = fact(tensor)?;
    let volume = fact.volume().unwrap_or(0);
    let text = |cause: TractError| format!("{cause:#}");
    if fact.datatype == DataType::Bytes {
        let strings: Vec<&[u8]> = tensor.string_val.iter().map(Vec::as_slice).collect();
        return blobs(&fact.dims, &spread(&strings, volume)?).map_err(text);
    }
    let bytes = bytes(tensor, fact.datatype, volume)?;
    if fact.datatype == DataType::Bool {
        let flags: Vec<bool> = bytes.into_iter().map(|byte| byte != 0).collect();
        return Tensor::from_shape(&fact.dims, &flags).map_err(text);
    }
    let datum = to_engine(fact.datatype).ok_or("a datatype that the engine lacks")?;
    let mut made = Tensor::zero_dt(datum, &fact.dims).map_err(text)?;
    made.as_bytes_mut().copy_from_slice(&bytes);
    Ok(made)
}

/// The bytes of a constant of numbers.
fn bytes(tensor: &TensorProto, datatype: DataType, volume: usize) -> Result<Vec<u8>, String> {
    let size = datatype.size().ok_or("strings have no fixed size")?;
    if !tensor.tensor_content.is_empty() {
        let found = tensor.tensor_content.len();
        let is_right = found == size * volume;
        return if is_right {
            Ok(tensor.tensor_content.clone())
        } else {
            Err(format!("it has {found} bytes for {volume} elements"))
        };
    }
    /// The elements of one list, as bytes of the datatype.
    fn of<T: Copy, const N: usize>(list: &[T], volume: usize, to: impl Fn(T) -> [u8; N]) -> Result<Vec<u8>, String> {
        Ok(spread(list, volume)?.into_iter().flat_map(to).collect())
    }
    match datatype {
        DataType::Bool => of(&tensor.bool_val, volume, |value| [u8::from(value)]),
        DataType::Uint8 | DataType::Int8 => of(&tensor.int_val, volume, |value| [value as u8]),
        DataType::Uint16 | DataType::Int16 => of(&tensor.int_val, volume, |value| (value as u16).to_le_bytes()),
        DataType::Int32 => of(&tensor.int_val, volume, i32::to_le_bytes),
        DataType::Uint32 => of(&tensor.uint32_val, volume, u32::to_le_bytes),
        DataType::Int64 => of(&tensor.int64_val, volume, i64::to_le_bytes),
        DataType::Uint64 => of(&tensor.uint64_val, volume, u64::to_le_bytes),
        DataType::Fp16 => of(&tensor.half_val, volume, |value| (value as u16).to_le_bytes()),
        DataType::Fp32 => of(&tensor.float_val, volume, f32::to_le_bytes),
        DataType::Fp64 => of(&tensor.double_val, volume, f64::to_le_bytes),
        DataType::Bytes | DataType::Bf16 => Err("a datatype that constants cannot have here".to_owned()),
    }
}

/// Expands a list: TensorFlow omits repetitions of the last element, so a tensor of zeros has one element or none.
fn spread<T: Copy>(list: &[T], volume: usize) -> Result<Vec<T>, String> {
    if list.len() > volume {
        return Err(format!("it has {} elements for a shape of {volume}", list.len()));
    }
    let last = match list.last() {
        Some(last) => *last,
        None if volume == 0 => return Ok(Vec::new()),
        None => return Err(format!("it has no element for a shape of {volume}")),
    };
    let mut all = list.to_vec();
    all.resize(volume, last);
    Ok(all)
}
