//! What is the format of a trace in its file?
//!
//! It is Triton's: one JSON object for each note, with the notes of one request together. In some cases Triton writes
//! invalid JSON (a quotation mark in a request id or a string, bytes as characters). Here they are written as valid
//! JSON.

use std::fmt::Write;

use nerite_request::{Begin, Gathered, Noted, TracedTensor};
use nerite_tensor::DataType;
use nerite_wire::json::Writer;

use crate::number::general;

/// The objects of a trace with commas between them; empty without notes.
pub fn lines(mut trace: Gathered) -> Vec<u8> {
    // Grouped by request, each in the order in which they were made.
    trace.notes.sort_by_key(|note| note.id);
    let mut out = Writer::with_capacity(64 * trace.notes.len());
    for note in &trace.notes {
        out.object(|out| {
            out.key("id").unsigned(note.id);
            write(out, &note.what);
        });
    }
    out.into_bytes()
}

fn write(out: &mut Writer, what: &Noted) {
    match what {
        Noted::Begin(begin) => {
            let Begin { model, version, request_id, parent } = &**begin;
            out.key("model_name").string(model.as_bytes());
            out.key("model_version").signed(version.parse().unwrap_or_default());
            if !request_id.is_empty() {
                out.key("request_id").string(request_id.as_bytes());
            }
            if *parent != 0 {
                out.key("parent_id").unsigned(*parent);
            }
        }
        Noted::Passed(point, ns) => write_point(out, point.as_bytes(), *ns),
        Noted::Reported(point, ns) => write_point(out, point.as_bytes(), *ns),
        Noted::Tensor(tensor) => {
            out.key("activity").string(tensor.activity.as_bytes());
            out.key("tensor").object(|out| write_tensor(out, tensor));
        }
    }
}

fn write_point(out: &mut Writer, point: &[u8], ns: u64) {
    out.key("timestamps").array(|out| {
        out.object(|out| {
            out.key("name").string(point);
            out.key("ns").unsigned(ns);
        });
    });
}

fn write_tensor(out: &mut Writer, tensor: &TracedTensor) {
    let shape: Vec<String> = tensor.shape.iter().map(i64::to_string).collect();
    out.key("name").string(tensor.name.as_bytes());
    out.key("data").string(elements(tensor.datatype, &tensor.data).as_bytes());
    out.key("shape").string(shape.join(",").as_bytes());
    out.key("dtype").string(tensor.datatype.name().as_bytes());
    let left_out = tensor.byte_size.saturating_sub(tensor.data.len());
    if left_out > 0 {
        out.key("bytes_left_out").unsigned(left_out as u64);
    }
}

/// The elements with commas between them. As in Triton, elements of FP16 and BF16 are left out.
fn elements(datatype: DataType, data: &[u8]) -> String {
    fn numbers<const N: usize, T: ToString>(data: &[u8], of: impl Fn([u8; N]) -> T) -> String {
        let (elements, _) = data.as_chunks::<N>();
        let mut text = String::with_capacity(4 * elements.len());
        for (at, element) in elements.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            // Writing to a String cannot fail.
            let _ = write!(text, "{comma}{}", of(*element).to_string());
        }
        text
    }
    match datatype {
        DataType::Bool => numbers(data, |[byte]| u8::from(byte != 0)),
        DataType::Uint8 => numbers(data, u8::from_le_bytes),
        DataType::Uint16 => numbers(data, u16::from_le_bytes),
        DataType::Uint32 => numbers(data, u32::from_le_bytes),
        DataType::Uint64 => numbers(data, u64::from_le_bytes),
        DataType::Int8 => numbers(data, i8::from_le_bytes),
        DataType::Int16 => numbers(data, i16::from_le_bytes),
        DataType::Int32 => numbers(data, i32::from_le_bytes),
        DataType::Int64 => numbers(data, i64::from_le_bytes),
        DataType::Fp32 => numbers(data, |bytes| general(f64::from(f32::from_le_bytes(bytes)))),
        DataType::Fp64 => numbers(data, |bytes| general(f64::from_le_bytes(bytes))),
        DataType::Fp16 | DataType::Bf16 => String::new(),
        DataType::Bytes => strings(data),
    }
}

/// Strings in quotation marks. The last may be cut off.
fn strings(mut data: &[u8]) -> String {
    let mut text = String::with_capacity(data.len());
    while let Some((length, rest)) = data.split_first_chunk::<4>() {
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let (element, rest) = rest.split_at(length.min(rest.len()));
        let comma = if text.is_empty() { "" } else { "," };
        let _ = write!(text, "{comma}\"{}\"", String::from_utf8_lossy(element));
        data = rest;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(datatype: DataType, data: &[u8], expected: &str) {
        assert_eq!(elements(datatype, data), expected);
    }

    #[test]
    fn elements_are_numbers_or_strings_with_commas() {
        check(DataType::Bool, &[1, 0], "1,0");
        check(DataType::Uint8, &[65, 7], "65,7");
        check(DataType::Int16, &[255, 255, 2, 0], "-1,2");
        check(DataType::Fp16, &[1, 2], "");
        check(DataType::Fp32, &1.5f32.to_le_bytes(), "1.5");
        check(DataType::Bytes, b"\x03\0\0\0a\"b\x01\0\0\0x", "\"a\"b\",\"x\"");
        check(DataType::Bytes, b"\x09\0\0\0cut", "\"cut\"");
        check(DataType::Bytes, b"\x09\0", "");
    }
}
