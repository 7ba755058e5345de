//! How are typed tensor contents converted to a tensor's bytes?

use nerite_memory::Buffer;
use nerite_request::Status;
use nerite_tensor::{DataType, strings};

use super::messages::InferTensorContents;
use super::read::{Fields, Malformed, Value};

const FP32_CONTENTS: u32 = 6;
const FP64_CONTENTS: u32 = 7;
const BYTES_CONTENTS: u32 = 8;
/// Memory that a number may take: 8 bytes in a vector with twice the capacity, and 8 bytes in the tensor.
const NUMBER_BYTES: usize = 24;
/// Memory that a string may take beside its bytes: a header of 32 bytes in a vector with twice the capacity, the smallest allocation of the heap, and
/// its length in the tensor.
const STRING_BYTES: usize = 104;

/// The bytes of an input whose values are in protobuf's typed fields.
pub(super) fn to_buffer(
    contents: InferTensorContents,
    declared: Option<DataType>,
    input: &str,
    model: &str,
) -> Result<Buffer, Status> {
    let mut taken: Option<Vec<u8>> = None;
    for (given, values) in fields(contents, declared) {
        if values.count == 0 {
            continue;
        }
        if taken.as_ref().is_some_and(|bytes| !bytes.is_empty()) {
            return Err(Status::invalid(format!(
                "unexpected explicit tensor data for input tensor '{input}' for model '{model}', binary data was already supplied."
            )));
        }
        if declared != Some(given) {
            return Err(Status::invalid(format!(
                "unexpected explicit tensor data for input tensor '{input}' for model '{model}' of type '{given}', expected datatype '{}'",
                declared.map_or("<invalid>", DataType::name),
            )));
        }
        taken = Some((values.bytes)());
    }
    Ok(taken.map_or_else(Buffer::empty, Buffer::from))
}

/// Bytes of memory that reading these contents may take: vectors that double as they grow, one header and one heap allocation for each string, and
/// then the tensor.
pub(super) fn decoded_bytes_max(contents: &[u8]) -> Result<usize, Malformed> {
    let (mut fields, mut decoded_bytes_max) = (Fields::new(contents), 0usize);
    while let Some(field) = fields.next()? {
        let more = match field {
            (BYTES_CONTENTS, Value::Len(element)) => STRING_BYTES + 3 * element.len(),
            (FP32_CONTENTS | FP64_CONTENTS, Value::Len(packed)) => 3 * packed.len(),
            // The top bit is clear only in the last byte of each number.
            (_, Value::Len(packed)) => packed.iter().filter(|byte| **byte < 0x80).count() * NUMBER_BYTES,
            _ => NUMBER_BYTES,
        };
        decoded_bytes_max = decoded_bytes_max.saturating_add(more);
    }
    Ok(decoded_bytes_max)
}

/// One typed field: the number of its values, and how they are converted to bytes.
struct Values {
    count: usize,
    bytes: Box<dyn FnOnce() -> Vec<u8>>,
}

/// The typed fields in the order in which they are checked, each with its datatype. Two fields serve several datatypes: they get the declared one if
/// it is one of these.
fn fields(contents: InferTensorContents, declared: Option<DataType>) -> [(DataType, Values); 8] {
    use DataType::{Bool, Bytes, Fp32, Fp64, Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64};
    let int = declared.filter(|datatype| matches!(datatype, Int8 | Int16)).unwrap_or(Int32);
    let uint = declared.filter(|datatype| matches!(datatype, Uint8 | Uint16)).unwrap_or(Uint32);
    // The low bytes of a little-endian number are the number in the smaller type.
    let int_size = int.size().unwrap_or(4);
    let uint_size = uint.size().unwrap_or(4);
    [
        (Bool, values(contents.bool_contents, |out, value| out.push(u8::from(value)))),
        (int, values(contents.int_contents, move |out, value| out.extend_from_slice(&value.to_le_bytes()[..int_size]))),
        (Int64, values(contents.int64_contents, |out, value| out.extend_from_slice(&value.to_le_bytes()))),
        (
            uint,
            values(contents.uint_contents, move |out, value| out.extend_from_slice(&value.to_le_bytes()[..uint_size])),
        ),
        (Uint64, values(contents.uint64_contents, |out, value| out.extend_from_slice(&value.to_le_bytes()))),
        (Fp32, values(contents.fp32_contents, |out, value| out.extend_from_slice(&value.to_le_bytes()))),
        (Fp64, values(contents.fp64_contents, |out, value| out.extend_from_slice(&value.to_le_bytes()))),
        (
            Bytes,
            values(contents.bytes_contents, |out, value| {
                strings::push(out, &value)
                    .expect("an element of a message is shorter than the message, which is below 2 GiB");
            }),
        ),
    ]
}

fn values<T: 'static>(all: Vec<T>, mut write: impl FnMut(&mut Vec<u8>, T) + 'static) -> Values {
    let count = all.len();
    let bytes = move || {
        let mut out = Vec::new();
        for value in all {
            write(&mut out, value);
        }
        out
    };
    Values { count, bytes: Box::new(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(contents: InferTensorContents, declared: Option<DataType>, expect: Result<&[u8], &str>) {
        let got = to_buffer(contents, declared, "in", "m");
        let got = got.as_ref().map(|buffer| buffer.private_bytes().unwrap_or_default()).map_err(|e| e.message.as_str());
        assert_eq!(got, expect);
    }

    #[track_caller]
    fn check_decoded_bytes_max(contents: InferTensorContents, bytes: usize) {
        assert_eq!(decoded_bytes_max(&prost::Message::encode_to_vec(&contents)), Ok(bytes));
    }

    #[test]
    fn small_numbers_and_short_strings_take_more_than_they_are() {
        let none = InferTensorContents::default;
        check_decoded_bytes_max(none(), 0);
        check_decoded_bytes_max(InferTensorContents { fp32_contents: vec![1.0; 10], ..none() }, 120);
        check_decoded_bytes_max(InferTensorContents { int64_contents: vec![1; 10], ..none() }, 240);
        check_decoded_bytes_max(InferTensorContents { int64_contents: vec![i64::MAX; 10], ..none() }, 240);
        check_decoded_bytes_max(
            InferTensorContents { bytes_contents: vec![b""[..].into(), b"abc"[..].into()], ..none() },
            217,
        );
        assert!(decoded_bytes_max(&[0x42, 9]).is_err());
    }

    #[test]
    fn numbers_become_little_endian_and_narrow() {
        let ints = || InferTensorContents { int_contents: vec![-1, 300], ..Default::default() };
        check(ints(), Some(DataType::Int8), Ok(&[0xff, 44]));
        check(ints(), Some(DataType::Int16), Ok(&[0xff, 0xff, 44, 1]));
        check(ints(), Some(DataType::Int32), Ok(&[0xff, 0xff, 0xff, 0xff, 44, 1, 0, 0]));
        let uints = || InferTensorContents { uint_contents: vec![258], ..Default::default() };
        check(uints(), Some(DataType::Uint8), Ok(&[2]));
        check(uints(), Some(DataType::Uint16), Ok(&[2, 1]));
        check(uints(), Some(DataType::Uint32), Ok(&[2, 1, 0, 0]));
        let floats = InferTensorContents { fp32_contents: vec![1.0], ..Default::default() };
        check(floats, Some(DataType::Fp32), Ok(&[0, 0, 0x80, 0x3f]));
        let bools = InferTensorContents { bool_contents: vec![true, false], ..Default::default() };
        check(bools, Some(DataType::Bool), Ok(&[1, 0]));
        let words =
            InferTensorContents { bytes_contents: vec![b"ab"[..].into(), b""[..].into()], ..Default::default() };
        check(words, Some(DataType::Bytes), Ok(b"\x02\0\0\0ab\0\0\0\0"));
        check(InferTensorContents::default(), Some(DataType::Fp16), Ok(&[]));
    }

    #[test]
    fn the_wrong_field_and_two_fields_are_refused() {
        let ints = || InferTensorContents { int_contents: vec![1], ..Default::default() };
        let wrong = |given, declared| {
            format!(
                "unexpected explicit tensor data for input tensor 'in' for model 'm' of type '{given}', expected datatype '{declared}'"
            )
        };
        check(ints(), Some(DataType::Fp32), Err(&wrong("INT32", "FP32")));
        check(ints(), Some(DataType::Fp16), Err(&wrong("INT32", "FP16")));
        check(ints(), None, Err(&wrong("INT32", "<invalid>")));
        let two = InferTensorContents { int64_contents: vec![1], ..ints() };
        check(
            two,
            Some(DataType::Int32),
            Err(
                "unexpected explicit tensor data for input tensor 'in' for model 'm', binary data was already supplied.",
            ),
        );
    }
}
