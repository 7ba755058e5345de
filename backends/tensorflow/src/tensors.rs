//! How are the bytes of a request converted to the engine's tensors, and back?

use nerite_backend_sdk::{DataType, Error};
use tract_tensorflow::prelude::*;
use tract_tensorflow::tract_core::internal::Blob;

/// The engine's datatype.
pub fn to_engine(datatype: DataType) -> Option<DatumType> {
    Some(match datatype {
        DataType::Bool => DatumType::Bool,
        DataType::Uint8 => DatumType::U8,
        DataType::Uint16 => DatumType::U16,
        DataType::Uint32 => DatumType::U32,
        DataType::Uint64 => DatumType::U64,
        DataType::Int8 => DatumType::I8,
        DataType::Int16 => DatumType::I16,
        DataType::Int32 => DatumType::I32,
        DataType::Int64 => DatumType::I64,
        DataType::Fp16 => DatumType::F16,
        DataType::Fp32 => DatumType::F32,
        DataType::Fp64 => DatumType::F64,
        DataType::Bytes => DatumType::Blob,
        DataType::Bf16 => return None,
    })
}

/// A tensor of numbers, whose bytes `fill` writes.
pub fn of_numbers(
    datatype: DataType,
    dims: &[usize],
    fill: impl FnOnce(&mut [u8]) -> Result<(), Error>,
) -> Result<Tensor, Error> {
    if datatype == DataType::Bool {
        let mut bytes = vec![0; dims.iter().product()];
        fill(&mut bytes)?;
        // Booleans must be 0 or 1. A client can send any byte.
        let flags: Vec<bool> = bytes.into_iter().map(|byte| byte != 0).collect();
        return Tensor::from_shape(dims, &flags).map_err(internal);
    }
    let datum = to_engine(datatype).ok_or_else(|| Error::unsupported(format!("{} tensors", datatype.name())))?;
    let mut tensor = Tensor::zero_dt(datum, dims).map_err(internal)?;
    fill(tensor.as_bytes_mut())?;
    Ok(tensor)
}

/// A tensor of strings, from bytes in which each string follows its length.
pub fn of_strings(name: &str, dims: &[usize], bytes: &[u8]) -> Result<Tensor, Error> {
    let count = dims.iter().product();
    let found = split(bytes, count).ok_or_else(|| {
        Error::invalid(format!("the {} bytes of '{name}' are not {count} strings, each behind its length", bytes.len()))
    })?;
    blobs(dims, &found).map_err(internal)
}

/// A tensor of these strings.
pub fn blobs(dims: &[usize], strings: &[&[u8]]) -> TractResult<Tensor> {
    let blobs =
        strings.iter().map(|string| Blob::from_bytes_alignment(string, 1)).collect::<TractResult<Vec<Blob>>>()?;
    Ok(tract_ndarray::ArrayD::from_shape_vec(dims, blobs)?.into())
}

/// The bytes of some rows of a tensor, in the form of responses. The first dimension is `rows` in all.
pub fn to_bytes(tensor: &Tensor, rows: usize, range: std::ops::Range<usize>) -> Result<Vec<u8>, Error> {
    if tensor.datum_type() == DatumType::Blob {
        let view = tensor.try_as_plain_ram().map_err(internal)?;
        let strings = view.as_slice::<Blob>().map_err(internal)?;
        let each = strings.len() / rows.max(1);
        let mut bytes = Vec::new();
        for string in strings.get(range.start * each..range.end * each).unwrap_or_default() {
            let length = u32::try_from(string.len()).map_err(|_| Error::internal("a string has more than 4 GiB"))?;
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(string);
        }
        return Ok(bytes);
    }
    let each = tensor.as_bytes().len() / rows.max(1);
    Ok(tensor.as_bytes().get(range.start * each..range.end * each).unwrap_or_default().to_vec())
}

/// Splits bytes into strings, each of which follows its length. `None` unless there are exactly `count` strings and no bytes left.
pub fn split(mut bytes: &[u8], count: usize) -> Option<Vec<&[u8]>> {
    // Each string takes at least four bytes, so a larger `count` is wrong, and would reserve too much memory.
    if count > bytes.len() / 4 {
        return None;
    }
    let mut found = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (string, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        found.push(string);
        bytes = rest;
    }
    bytes.is_empty().then_some(found)
}

pub fn internal(cause: TractError) -> Error {
    Error::internal(format!("{cause:#}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn strings_are_split_completely_or_not_at_all() {
        let two = b"\x01\0\0\0a\0\0\0\0";
        assert_eq!(split(two, 2), Some(vec![&b"a"[..], b""]));
        assert_eq!((split(two, 1), split(two, 3), split(b"\xff\xff\xff\xffa", 1)), (None, None, None));
        assert_eq!(split(b"", usize::MAX), None);
        assert_eq!(to_bytes(&of_strings("x", &[2], two).unwrap(), 2, 0..1).unwrap(), b"\x01\0\0\0a");
    }

    #[test]
    fn any_byte_but_zero_is_true() {
        let fill = |bytes: &mut [u8]| {
            bytes.copy_from_slice(&[0, 1, 2, 255]);
            Ok(())
        };
        let flags = of_numbers(DataType::Bool, &[4], fill).unwrap();
        assert_eq!(to_bytes(&flags, 1, 0..1).unwrap(), [0, 1, 1, 1]);
    }
}
