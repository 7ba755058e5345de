//! How are a batch and its answer encoded in few bytes?
//!
//! ```text
//!   Execute   kind 1 | requests | bytes of the rest      u32 each, little endian like all numbers here
//!             each request: number | correlation | timeout_us           u64
//!                           rows | flags | layout bytes | text bytes     u32
//!                           layout: names, datatypes, shapes; the process parses it once and recognises it by its bytes
//!                           segment | offset | bytes of each input, segment | offset | capacity of each output      u64
//!                           text: JSON of rare fields: id, parameters, a correlation id that is a string
//!             rest: JSON of map and forget, if there are any
//!   Executed  kind 2 | responses | bytes of the rest
//!             each response: kind 1 | outputs, each: bytes of the name, bytes of the datatype, dimensions   u32
//!                                                    dimensions (i64), name, datatype, segment | offset | bytes
//!                            kind 2 | bytes of a response in JSON
//!             rest: JSON of lost, held, let_go and unmapped, if there are any
//! ```
//!
//! Segment 0 means none. A JSON packet begins with `{`, so the first byte distinguishes the two. In Python, JSON takes twice as long as this for a
//! small batch.

use std::fmt::Display;

use nerite_request::SequenceId;
use nerite_tensor::{DataType, Shape};

use super::command::{Execute, Request, Traced};
use super::tensors::{List, OutputMemory, SegmentOffset, TensorAt, Text};
use crate::words::parameters_text;

/// The first byte of the command to execute a batch.
const EXECUTE: u32 = 1;
/// The first byte of its answer.
const EXECUTED: u32 = 2;
/// A response that consists of outputs only.
const OUTPUTS: u32 = 1;
const HEAD_BYTES: usize = 12;

const FLAG_START: u32 = 1;
const FLAG_END: u32 = 2;
const FLAG_MUST_WAIT: u32 = 4;

/// Builds the command to execute a batch.
#[derive(Debug)]
pub enum BatchPacket {
    /// JSON: the requests, with commas between them.
    Text(String),
    /// Packed: the requests, with space for the head before them, and their number.
    Packed(Vec<u8>, u32),
}

impl BatchPacket {
    /// A command without requests.
    pub fn new(is_packed: bool) -> BatchPacket {
        if is_packed { BatchPacket::Packed(vec![0; HEAD_BYTES], 0) } else { BatchPacket::Text(String::new()) }
    }

    /// Adds a request.
    pub fn add<'a, I, O>(&mut self, request: &Request<'_, I, O>)
    where
        I: Iterator<Item = TensorAt<'a, &'a [i64]>> + Clone,
        O: Iterator<Item = OutputMemory<'a>> + Clone,
    {
        match self {
            BatchPacket::Text(text) => {
                let comma = if text.is_empty() { "" } else { "," };
                *text += comma;
                *text += &request.to_string();
            }
            BatchPacket::Packed(bytes, count) => {
                *count += 1;
                add_packed(bytes, request);
            }
        }
    }

    /// The whole packet. `map` and `forget` as in [`Execute`].
    pub fn finish(self, map: &str, forget: &[u64]) -> Vec<u8> {
        match self {
            BatchPacket::Text(requests) => Execute { requests: &requests, map, forget }.to_string().into_bytes(),
            BatchPacket::Packed(mut bytes, count) => {
                let at = bytes.len();
                if !map.is_empty() || !forget.is_empty() {
                    let forget = List(forget.iter());
                    bytes.extend_from_slice(format!(r#"{{"map":[{map}],"forget":{forget}}}"#).as_bytes());
                }
                let rest = bytes.len() - at;
                for (word, place) in [EXECUTE, count, length(rest)].into_iter().zip(bytes.chunks_exact_mut(4)) {
                    place.copy_from_slice(&word.to_le_bytes());
                }
                bytes
            }
        }
    }
}

fn add_packed<'a, I, O>(out: &mut Vec<u8>, request: &Request<'_, I, O>)
where
    I: Iterator<Item = TensorAt<'a, &'a [i64]>> + Clone,
    O: Iterator<Item = OutputMemory<'a>> + Clone,
{
    let Request { number, id, rows, sequence, timeout_us, parameters, inputs, outputs, must_wait, trace, own: _ } =
        request;
    let (correlation, text) = match &sequence.id {
        SequenceId::None => (0, None),
        SequenceId::Number(number) => (*number, None),
        SequenceId::Text(text) => (0, Some(text)),
    };
    let flag = |is: bool, flag: u32| if is { flag } else { 0 };
    let flags = flag(sequence.start, FLAG_START) | flag(sequence.end, FLAG_END) | flag(*must_wait, FLAG_MUST_WAIT);
    put_long(out, [*number, correlation, *timeout_us]);
    put(out, [*rows, flags, 0, 0]);
    let layout_at = out.len();
    put(out, [length(inputs.clone().count()), length(outputs.clone().count())]);
    for TensorAt { name, datatype, shape, .. } in inputs.clone() {
        put_head(out, name, datatype, shape);
    }
    for OutputMemory { name, fixed, .. } in outputs.clone() {
        put(out, [length(name.len()), u32::from(fixed)]);
        out.extend_from_slice(name.as_bytes());
    }
    let layout_end = out.len();
    for TensorAt { location, bytes, .. } in inputs.clone() {
        put_place(out, location, bytes);
    }
    for OutputMemory { location, capacity, .. } in outputs.clone() {
        put_place(out, location, capacity);
    }
    let text_at = out.len();
    if !id.is_empty() || text.is_some() || parameters.iter().next().is_some() || trace.is_some() {
        let correlation = text.map_or_else(|| correlation.to_string(), |text| Text(text).to_string());
        let parameters = parameters_text(parameters);
        let (id, trace) = (Text(id), Traced(*trace));
        put_text(out, format_args!(r#"{{"id":{id},"correlation":{correlation},"parameters":{parameters}{trace}}}"#));
    }
    let lengths = [layout_end - layout_at, out.len() - text_at].map(|bytes| length(bytes).to_le_bytes());
    if let Some(place) = out.get_mut(layout_at - 8..layout_at) {
        place.copy_from_slice(lengths.as_flattened());
    }
}

fn put_head(out: &mut Vec<u8>, name: &str, datatype: DataType, shape: &[i64]) {
    let datatype = datatype.name();
    put(out, [length(name.len()), length(datatype.len()), length(shape.len())]);
    for dim in shape {
        out.extend_from_slice(&dim.to_le_bytes());
    }
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(datatype.as_bytes());
}

fn put_place(out: &mut Vec<u8>, location: Option<SegmentOffset>, bytes: usize) {
    let (segment, offset) = location.map_or((0, 0), |location| (location.segment, location.offset as u64));
    put_long(out, [segment, offset, bytes as u64]);
}

fn put_text(out: &mut Vec<u8>, text: impl Display) {
    out.extend_from_slice(text.to_string().as_bytes());
}

fn put<const N: usize>(out: &mut Vec<u8>, words: [u32; N]) {
    out.extend_from_slice(words.map(u32::to_le_bytes).as_flattened());
}

fn put_long<const N: usize>(out: &mut Vec<u8>, words: [u64; N]) {
    out.extend_from_slice(words.map(u64::to_le_bytes).as_flattened());
}

/// A length as u32. The texts of one packet are far shorter, because all of them came in one request.
fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// The answer to a batch, as the server reads it. The process can write any bytes, so each is read once and checked.
#[derive(Clone, Debug)]
pub(super) struct PackedResponses {
    bytes: Vec<u8>,
    /// The offset of the next response.
    at: usize,
    /// The number of remaining responses, as the process claims.
    left: u32,
}

impl PackedResponses {
    /// The responses and the rest of an answer. `None` if it is not packed, or invalid.
    pub(super) fn read(packet: &[u8]) -> Option<(PackedResponses, &[u8])> {
        let mut cursor = Cursor(packet);
        let [EXECUTED, left, rest] = [cursor.word()?, cursor.word()?, cursor.word()?] else { return None };
        let (responses, rest) = cursor.0.split_at_checked(cursor.0.len().checked_sub(rest as usize)?)?;
        Some((PackedResponses { bytes: responses.to_vec(), at: 0, left }, rest))
    }

    /// The next response. After an invalid one there are no others.
    pub(super) fn next(&mut self) -> Option<OneResponse> {
        self.left = self.left.checked_sub(1)?;
        let mut cursor = Cursor(self.bytes.get(self.at..)?);
        let found = cursor.response();
        match &found {
            Some(_) => self.at = self.bytes.len() - cursor.0.len(),
            None => self.left = 0,
        }
        found
    }
}

/// One response, as it was sent.
#[derive(Clone, Debug)]
pub(super) enum OneResponse {
    /// Its outputs, one after another.
    Outputs(Vec<u8>),
    /// JSON.
    Text(Vec<u8>),
}

/// The outputs of one response. It ends at the first invalid one.
#[derive(Clone, Debug)]
pub(super) struct PackedOutputs<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for PackedOutputs<'a> {
    type Item = Option<TensorAt<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let mut cursor = Cursor(self.0);
        let output = cursor.output();
        self.0 = if output.is_some() { cursor.0 } else { &[] };
        Some(output)
    }
}

/// Bytes that are read from the front.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (found, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(found)
    }

    fn word(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn long(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn text(&mut self, bytes: u32) -> Option<&'a str> {
        std::str::from_utf8(self.take(bytes as usize)?).ok()
    }

    fn response(&mut self) -> Option<OneResponse> {
        let (kind, count) = (self.word()?, self.word()?);
        if kind != OUTPUTS {
            return self.take(count as usize).map(|text| OneResponse::Text(text.to_vec()));
        }
        let whole = self.0;
        for _ in 0..count {
            self.output_bytes()?;
        }
        Some(OneResponse::Outputs(whole.get(..whole.len() - self.0.len())?.to_vec()))
    }

    /// Skips an output without checking its contents.
    fn output_bytes(&mut self) -> Option<()> {
        let [name, datatype, dims] = [self.word()?, self.word()?, self.word()?].map(|length| length as usize);
        let bytes = dims.checked_mul(8)?.checked_add(name)?.checked_add(datatype)?.checked_add(24)?;
        self.take(bytes).map(drop)
    }

    fn output(&mut self) -> Option<TensorAt<'a>> {
        let [name, datatype, dims] = [self.word()?, self.word()?, self.word()?];
        let dims = self.take((dims as usize).checked_mul(8)?)?;
        let shape: Shape = dims.as_chunks::<8>().0.iter().map(|dim| i64::from_le_bytes(*dim)).collect();
        let (name, datatype) = (self.text(name)?, DataType::from_name(self.text(datatype)?)?);
        let (segment, offset, bytes) = (self.long()?, self.long()? as usize, self.long()? as usize);
        let location = (segment > 0).then_some(SegmentOffset { segment, offset });
        Some(TensorAt { name, datatype, shape, location, bytes })
    }
}
