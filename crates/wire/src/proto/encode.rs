//! How is a response encoded as protobuf without copying its tensors?
//!
//! ```text
//!   | 0 | length u32 BE | names, outputs, header of tensor 0 | tensor 0 … | header of tensor 1 | tensor 1 … |
//!   '------------------- one chunk ----------------------'   own chunk    '---- one chunk ---'   own chunk
//! ```

use bytes::{BufMut, Bytes, BytesMut};
use nerite_memory::Reason;
use nerite_request::names::ByName;
use nerite_request::{InferResponse, LeaseNotice, Output, Parameter, Recycled, Status};
use smallvec::SmallVec;

use super::MESSAGE_BYTES_MAX;
use crate::short_answer;

/// Smaller tensors are copied between their neighbours. Sending another chunk costs more than copying so few bytes.
const CHUNK_BYTES_MIN: usize = 4096;
/// Bytes of the prefix of a gRPC message: a flag and the length.
pub const PREFIX_BYTES: usize = 5;
const FINAL: &str = "triton_final_response";

/// A framed gRPC message as parts that are sent one after the other.
pub type Chunks = SmallVec<[Bytes; 2]>;

/// Fields of a stream's response beside its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamStatus<'a> {
    /// The error. Empty if there is none.
    pub error: &'a str,
    /// Whether it is the last response to its request. `None` if the message does not say.
    pub last: Option<bool>,
}

/// A ModelInferResponse after the prefix of an uncompressed gRPC message.
pub fn encode_unary(response: Recycled<InferResponse>) -> Result<Chunks, Status> {
    let (chunks, notices) = encode_with_notices(response)?;
    notices.iter().for_each(LeaseNotice::set_sent);
    Ok(chunks)
}

/// As [`encode_unary`], but the lease notices are not marked as sent, because the message may be too long. They are returned.
fn encode_with_notices(response: Recycled<InferResponse>) -> Result<(Chunks, Vec<LeaseNotice>), Status> {
    let planned = Planned::new(response)?;
    let mut writer = Writer::new(planned.plan.len, planned.plan.small_len);
    let notices = planned.write(&mut writer)?;
    Ok((writer.finish(), notices))
}

/// A ModelInferResponse whose size is known, before it is encoded.
pub(super) struct Planned {
    response: Recycled<InferResponse>,
    plan: Plan,
}

impl Planned {
    pub(super) fn new(response: Recycled<InferResponse>) -> Result<Planned, Status> {
        let plan = Plan::new(&response, None)?;
        check_size(plan.len)?;
        Ok(Planned { response, plan })
    }

    /// Its encoded size in bytes.
    pub(super) fn len(&self) -> usize {
        self.plan.len
    }

    /// Appends it to `packet`, tensors of any size included. Returns the lease notices, which are not marked as sent.
    pub(super) fn append(self, packet: BytesMut) -> Result<(BytesMut, Vec<LeaseNotice>), Status> {
        let mut writer = Writer { chunks: Chunks::new(), small: packet, chunk_bytes_min: usize::MAX };
        let notices = self.write(&mut writer)?;
        Ok((writer.small, notices))
    }

    fn write(self, writer: &mut Writer) -> Result<Vec<LeaseNotice>, Status> {
        let Planned { mut response, plan } = self;
        let notices = std::mem::take(&mut response.lease_notices);
        writer.response(&plan, response, None)?;
        Ok(notices)
    }
}

/// A ModelStreamInferResponse after the prefix of an uncompressed gRPC message.
pub fn encode_stream(mut response: Recycled<InferResponse>, status: StreamStatus<'_>) -> Result<Chunks, Status> {
    let plan = Plan::new(&response, status.last)?;
    let error_len = text_len(status.error);
    let len = error_len + field_len(plan.len);
    check_size(len)?;
    let notices = std::mem::take(&mut response.lease_notices);
    let mut writer = Writer::new(len, plan.small_len + error_len + 8);
    writer.text(1, status.error);
    writer.head(2, plan.len);
    writer.response(&plan, response, status.last)?;
    notices.iter().for_each(LeaseNotice::set_sent);
    Ok(writer.finish())
}

fn check_size(len: usize) -> Result<(), Status> {
    if len <= MESSAGE_BYTES_MAX {
        return Ok(());
    }
    Err(Status::invalid(format!(
        "Response has byte size {len} which exceeds gRPC's byte size limit {MESSAGE_BYTES_MAX}."
    )))
}

/// The lengths of nested messages. Each is written before its message.
struct Plan {
    /// Bytes of the ModelInferResponse.
    len: usize,
    /// Bytes of it that are not in chunks of their own.
    small_len: usize,
    outputs: SmallVec<[OutputPlan; 4]>,
}

struct OutputPlan {
    len: usize,
    /// Where the server placed the output, as the parameters that clients use to name places.
    place: SmallVec<[(&'static str, Parameter); 0]>,
    dims_len: usize,
    raw_len: usize,
}

impl Plan {
    fn new(response: &InferResponse, last: Option<bool>) -> Result<Plan, Status> {
        let mut len = text_len(&response.model) + text_len(&response.version) + text_len(&response.id);
        len += response.parameters.iter().map(|(key, value)| field_len(entry_len(key, value))).sum::<usize>();
        len += last.map_or(0, |last| field_len(entry_len(FINAL, &Parameter::Bool(last))));
        let places = ByName::new(&response.lease_notices, |notice: &LeaseNotice| &notice.output);
        let outputs: SmallVec<[OutputPlan; 4]> =
            response.outputs.iter().map(|output| OutputPlan::new(output, places.find(&output.name))).collect();
        let mut small_len = len;
        for output in &outputs {
            let heads = field_len(output.len) + 1 + varint_len(output.raw_len as u64);
            small_len += heads + if output.raw_len < CHUNK_BYTES_MIN { output.raw_len } else { 0 };
            len = len.saturating_add(heads).saturating_add(output.raw_len);
        }
        check_size(len)?;
        Ok(Plan { len, small_len, outputs })
    }
}

impl OutputPlan {
    fn new(output: &Output, notice: Option<&LeaseNotice>) -> OutputPlan {
        let place: SmallVec<[(&'static str, Parameter); 0]> = notice.into_iter().flat_map(place).collect();
        let dims_len = output.shape.iter().map(|dim| varint_len(*dim as u64)).sum();
        let len = text_len(&output.name)
            + text_len(output.datatype.name())
            + if dims_len == 0 { 0 } else { field_len(dims_len) }
            + place.iter().map(|(key, value)| field_len(entry_len(key, value))).sum::<usize>();
        OutputPlan { len, place, dims_len, raw_len: if output.placed { 0 } else { output.data.len() } }
    }
}

fn place(notice: &LeaseNotice) -> [(&'static str, Parameter); 3] {
    let region = &notice.region;
    [
        ("shared_memory_region", Parameter::String(region.name.to_string())),
        ("shared_memory_offset", Parameter::Int(region.offset as i64)),
        ("shared_memory_byte_size", Parameter::Int(region.byte_size as i64)),
    ]
}

struct Writer {
    chunks: Chunks,
    small: BytesMut,
    /// Tensors from this size on are chunks of their own.
    chunk_bytes_min: usize,
}

impl Writer {
    fn new(len: usize, small_len: usize) -> Writer {
        let mut small = short_answer::buffer(PREFIX_BYTES + small_len);
        small.put_u8(0);
        small.put_u32(u32::try_from(len).expect("`check_size` has checked it"));
        Writer { chunks: Chunks::new(), small, chunk_bytes_min: CHUNK_BYTES_MIN }
    }

    fn response(
        &mut self,
        plan: &Plan,
        mut response: Recycled<InferResponse>,
        last: Option<bool>,
    ) -> Result<(), Status> {
        self.text(1, &response.model);
        self.text(2, &response.version);
        self.text(3, &response.id);
        response.parameters.iter().for_each(|(key, value)| self.entry(key, value));
        if let Some(last) = last {
            self.entry(FINAL, &Parameter::Bool(last));
        }
        for (output, plan) in response.outputs.iter().zip(&plan.outputs) {
            self.output(output, plan);
        }
        for (output, plan) in response.outputs.drain(..).zip(&plan.outputs) {
            self.head(6, plan.raw_len);
            self.raw(output, plan.raw_len)?;
        }
        Ok(())
    }

    fn output(&mut self, output: &Output, plan: &OutputPlan) {
        self.head(5, plan.len);
        self.text(1, &output.name);
        self.text(2, output.datatype.name());
        if plan.dims_len > 0 {
            self.head(3, plan.dims_len);
            output.shape.iter().for_each(|dim| self.varint(*dim as u64));
        }
        plan.place.iter().for_each(|(key, value)| self.entry(key, value));
    }

    fn raw(&mut self, output: Output, len: usize) -> Result<(), Status> {
        let Output { name, data, .. } = output;
        let refuse = |refused| Status::no_memory(format_args!("output '{name}' of {len} bytes"), refused);
        if len >= self.chunk_bytes_min {
            let before = self.small.split().freeze();
            self.chunks.push(before);
            self.chunks.push(data.try_into_bytes().map_err(refuse)?);
        } else if len > 0 && data.place().is_host() {
            let at = self.small.len();
            self.small.put_bytes(0, len);
            data.copy_to(&mut self.small[at..], Reason::InlineResponse);
        } else if len > 0 {
            self.small.extend_from_slice(&data.try_into_bytes().map_err(refuse)?);
        }
        Ok(())
    }

    /// Writes one entry of a map of parameters. The map is field 4 of every message here that has one.
    fn entry(&mut self, key: &str, value: &Parameter) {
        let value_len = parameter_len(value);
        self.head(4, entry_len(key, value));
        // Key and value of a map's entry are always written, even if empty.
        self.head(1, key.len());
        self.small.put_slice(key.as_bytes());
        self.head(2, value_len);
        match value {
            Parameter::Bool(value) => self.small.put_slice(&[1 << 3, u8::from(*value)]),
            Parameter::Int(value) => {
                self.small.put_u8(2 << 3);
                self.varint(*value as u64);
            }
            Parameter::String(value) => {
                self.head(3, value.len());
                self.small.put_slice(value.as_bytes());
            }
            Parameter::Double(value) => {
                self.small.put_u8(4 << 3 | 1);
                self.small.put_f64_le(*value);
            }
        }
    }

    fn text(&mut self, number: u8, text: &str) {
        if !text.is_empty() {
            self.head(number, text.len());
            self.small.put_slice(text.as_bytes());
        }
    }

    fn head(&mut self, number: u8, len: usize) {
        self.small.put_u8(number << 3 | 2);
        self.varint(len as u64);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.small.put_u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.small.put_u8(value as u8);
    }

    fn finish(mut self) -> Chunks {
        if !self.small.is_empty() {
            self.chunks.push(self.small.freeze());
        }
        self.chunks
    }
}

fn varint_len(value: u64) -> usize {
    ((64 - (value | 1).leading_zeros()) as usize).div_ceil(7)
}

/// Encoded length of a field of `len` bytes whose number is below 16: tag, length and bytes.
fn field_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}

fn text_len(text: &str) -> usize {
    if text.is_empty() { 0 } else { field_len(text.len()) }
}

fn entry_len(key: &str, value: &Parameter) -> usize {
    field_len(key.len()) + field_len(parameter_len(value))
}

fn parameter_len(value: &Parameter) -> usize {
    match value {
        Parameter::Bool(_) => 2,
        Parameter::Int(value) => 1 + varint_len(*value as u64),
        Parameter::String(value) => field_len(value.len()),
        Parameter::Double(_) => 9,
    }
}

#[cfg(test)]
mod tests;
