//! How are the packets of a session encoded?
//!
//! `docs/session.md` describes their meaning. The inference message inside a packet is the same as in gRPC, and uses the same reader and writer.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use nerite_request::{InferResponse, LeaseNotice, Recycled, Status};
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use super::encode::Planned;
use crate::short_answer;

/// The messages of `proto/session.proto`, package `nerite.session.v1`.
#[allow(clippy::pedantic, missing_docs)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/nerite.session.v1.rs"));
}

/// The version of the protocol described in `docs/session.md`.
pub const VERSION: u32 = 1;

/// The largest packet that either side sends. The limit of a Unix socket is its send buffer, by default 208 KiB on Linux, minus the kernel's overhead.
pub const PACKET_BYTES_MAX: usize = 128 << 10;

/// Descriptors in one packet: Linux passes at most 253.
pub const DESCRIPTORS_MAX: usize = 128;

// Field numbers of ServerMessage and Inference that `encode_inference` writes itself.
const ID: u32 = 1;
const MORE: u32 = 3;
const INFERENCE: u32 = 9;
const ANSWERS: u32 = 14;
const RESPONSE: u32 = 1;
const PLACED: u32 = 2;
const ANSWERS_MESSAGES: u32 = 1;

/// The most bytes that [`GatheredAnswers`] adds to its messages: the field's tag and a length of up to [`PACKET_BYTES_MAX`].
pub const ANSWERS_HEAD_BYTES: usize = 8;

/// Decodes a packet from a client. The tensors in a `Bytes` are not copied.
pub fn read_call(packet: impl Buf) -> Result<v1::ClientMessage, Status> {
    v1::ClientMessage::decode(packet).map_err(|error| Status::invalid(format!("packet not understood: {error}")))
}

/// Decodes a packet from a server.
pub fn read_answer(packet: Bytes) -> Result<v1::ServerMessage, Status> {
    v1::ServerMessage::decode(packet).map_err(|error| Status::internal(format!("packet not understood: {error}")))
}

/// Encodes a message that is not an inference as a packet.
pub fn encode_answer(message: &v1::ServerMessage) -> Bytes {
    message.encode_to_vec().into()
}

/// The answer to a prepared call whose response is the expected one. It needs no memory.
pub struct CalledPacket {
    bytes: [u8; CALLED_BYTES_MAX],
    len: usize,
}

/// The id takes one byte for its tag and at most ten for its value. The answer takes two.
const CALLED_BYTES_MAX: usize = 13;

impl CalledPacket {
    /// The answer to the call of that id.
    pub fn new(id: u64) -> CalledPacket {
        let mut bytes = [0; CALLED_BYTES_MAX];
        let mut left = &mut bytes[..];
        let answer = Some(v1::server_message::Answer::Called(v1::Called {}));
        let message = v1::ServerMessage { id, answer, ..v1::ServerMessage::default() };
        message.encode(&mut left).expect("an id has at most ten bytes");
        let len = CALLED_BYTES_MAX - left.len();
        CalledPacket { bytes, len }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The answers to the calls of one packet, each an encoded message, which are gathered into one packet.
#[derive(Debug, Default)]
pub struct GatheredAnswers {
    /// The content of `Answers`.
    encoded: Vec<u8>,
    messages: usize,
    /// Where the last message begins.
    last: usize,
}

impl GatheredAnswers {
    /// No answers yet, with a capacity for this many answers of [`CalledPacket`].
    pub fn with_capacity(messages: usize) -> GatheredAnswers {
        GatheredAnswers { encoded: Vec::with_capacity(messages * (CALLED_BYTES_MAX + 2)), messages: 0, last: 0 }
    }

    /// Adds a message.
    pub fn push(&mut self, message: &[u8]) {
        head(ANSWERS_MESSAGES, message.len(), &mut self.encoded);
        self.last = self.encoded.len();
        self.encoded.extend_from_slice(message);
        self.messages += 1;
    }

    /// Bytes that are allocated.
    pub fn capacity(&self) -> usize {
        self.encoded.capacity()
    }

    /// The most bytes of the packet.
    pub fn packet_bytes(&self) -> usize {
        ANSWERS_HEAD_BYTES + self.encoded.len()
    }

    /// Takes all messages as one packet. A single message is sent without the wrapping `Answers`. `None` if there are no messages.
    pub fn take(&mut self) -> Option<Bytes> {
        let GatheredAnswers { encoded, messages, last } = std::mem::take(self);
        match messages {
            0 => None,
            1 => Some(Bytes::from(encoded).slice(last..)),
            _ => {
                let mut packet = BytesMut::with_capacity(ANSWERS_HEAD_BYTES + encoded.len());
                head(ANSWERS, encoded.len(), &mut packet);
                packet.extend_from_slice(&encoded);
                Some(packet.freeze())
            }
        }
    }
}

/// Bytes that one message of [`GatheredAnswers`] takes in the packet.
pub fn nested_bytes(message: &[u8]) -> usize {
    field_len(ANSWERS_MESSAGES, message.len())
}

/// Encodes a response to an inference as a packet. `Err` if it is too long for one. `more` means that more responses may follow.
pub fn encode_inference(
    id: u64,
    more: bool,
    response: Recycled<InferResponse>,
    placed: &[v1::OutputLease],
) -> Result<Bytes, Status> {
    let planned = Planned::new(response)?;
    let response_len = planned.len();
    let placed_len: usize = placed.iter().map(|one| field_len(PLACED, one.encoded_len())).sum();
    let inference_len = field_len(RESPONSE, response_len) + placed_len;
    let id_len = if id == 0 { 0 } else { key_len(ID) + encoded_len_varint(id) };
    let more_len = if more { key_len(MORE) + 1 } else { 0 };
    let len = id_len + more_len + field_len(INFERENCE, inference_len);
    if len > PACKET_BYTES_MAX {
        return Err(Status::unavailable(format!(
            "the response has {len} bytes, a session's packet at most {PACKET_BYTES_MAX}; ask for its outputs in leases"
        )));
    }
    let mut packet = short_answer::buffer(len);
    if id != 0 {
        encode_key(ID, WireType::Varint, &mut packet);
        encode_varint(id, &mut packet);
    }
    if more {
        encode_key(MORE, WireType::Varint, &mut packet);
        packet.put_u8(1);
    }
    head(INFERENCE, inference_len, &mut packet);
    head(RESPONSE, response_len, &mut packet);
    let (mut packet, notices) = planned.append(packet)?;
    for one in placed {
        head(PLACED, one.encoded_len(), &mut packet);
        one.encode_raw(&mut packet);
    }
    debug_assert_eq!(packet.len(), len);
    notices.iter().for_each(LeaseNotice::set_sent);
    Ok(packet.freeze())
}

fn head(field: u32, len: usize, packet: &mut impl BufMut) {
    encode_key(field, WireType::LengthDelimited, packet);
    encode_varint(len as u64, packet);
}

fn field_len(field: u32, len: usize) -> usize {
    key_len(field) + encoded_len_varint(len as u64) + len
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nerite_memory::Buffer;
    use nerite_request::Output;
    use nerite_tensor::{DataType, Shape};
    use proptest::prelude::*;

    use super::super::{Chain, InferMessage, messages};
    use super::*;

    fn response(bytes: usize) -> InferResponse {
        let data = Buffer::from(vec![7u8; bytes]);
        let (name, shape) = ("Y".to_owned(), Shape::from_slice(&[bytes as i64]));
        let output = Output { index: 0, name: name.into(), datatype: DataType::Uint8, shape, data, placed: false };
        InferResponse {
            model: "m".into(),
            version: "1".into(),
            outputs: vec![output].into(),
            ..InferResponse::default()
        }
    }

    fn placed() -> v1::OutputLease {
        let lease = v1::Lease { name: "lease-1".into(), byte_size: 4096, descriptor: true };
        v1::OutputLease { output: "Z".into(), lease: Some(lease), offset: 0, byte_size: 64 }
    }

    #[track_caller]
    fn check(id: u64, more: bool, bytes: usize, placed: &[v1::OutputLease]) {
        let packet = encode_inference(id, more, response(bytes).into(), placed).unwrap();
        let read = read_answer(packet.clone()).unwrap();
        assert_eq!((read.id, read.more), (id, more));
        assert_eq!(encode_answer(&read).len(), packet.len());
        let Some(v1::server_message::Answer::Inference(inference)) = read.answer else { panic!("no inference") };
        assert_eq!(inference.placed, placed);
        let response = messages::ModelInferResponse::decode(inference.response).unwrap();
        assert_eq!(response.raw_output_contents, [vec![7u8; bytes]]);
        assert_eq!((response.model_name.as_str(), response.outputs.len()), ("m", 1));
    }

    #[test]
    fn an_inference_is_what_a_generated_reader_reads() {
        check(1, false, 0, &[]);
        check(0, true, 64, &[]);
        check(u64::MAX, true, 4096, &[placed()]);
        check(300, false, 100_000, &[placed(), placed()]);
    }

    #[test]
    fn a_response_too_long_for_a_packet_says_what_to_do() {
        let error = encode_inference(1, false, response(PACKET_BYTES_MAX).into(), &[]).unwrap_err();
        assert_eq!(
            error.message,
            "the response has 131109 bytes, a session's packet at most 131072; ask for its outputs in leases"
        );
    }

    #[test]
    fn the_request_inside_a_packet_is_read_without_a_copy() {
        let request = messages::ModelInferRequest { model_name: "m".into(), ..Default::default() }.encode_to_vec();
        let infer = v1::Infer { request: request.into(), leased_outputs: vec!["Y".into()], trace: None };
        let call = v1::ClientMessage { id: 5, call: Some(v1::client_message::Call::Infer(infer)), returned: vec![] };
        let packet = Bytes::from(call.encode_to_vec());
        let Some(v1::client_message::Call::Infer(infer)) = read_call(packet.clone()).unwrap().call else {
            panic!("no inference")
        };
        assert!(packet.as_ptr_range().contains(&infer.request.as_ptr()));
        assert_eq!(InferMessage::read(&Chain::from(infer.request)).unwrap().model, "m");
    }

    /// The packet of a call whose trace context has these bytes.
    fn traced(trace_parent: &[u8], trace_state: &[u8]) -> v1::ClientMessage {
        let (trace_parent, trace_state) = (Bytes::copy_from_slice(trace_parent), Bytes::copy_from_slice(trace_state));
        let trace = Some(Box::new(v1::TraceContext { trace_parent, trace_state }));
        let call = v1::client_message::Call::CallPrepared(v1::CallPrepared { handle: 3, further: vec![], trace });
        v1::ClientMessage { id: 9, returned: vec![], call: Some(call) }
    }

    #[test]
    fn a_trace_context_of_any_bytes_is_read_as_it_was_written() {
        let long = vec![b'a'; 100_000];
        for (parent, state) in [(&b""[..], &b""[..]), (b"00-1a-2b-01", b"a=1"), (b"\xff\n\0", b"\xff"), (&long, &long)]
        {
            let call = traced(parent, state);
            assert_eq!(read_call(Bytes::from(call.encode_to_vec())), Ok(call));
        }
        let shown = [0x08, 9, 0x72, 9, 0x08, 3, 0x1a, 5, 0x0a, 3, b'0', b'0', b'-'];
        assert_eq!(traced(b"00-", b"").encode_to_vec(), shown);
    }

    #[test]
    fn half_a_trace_context_is_no_packet() {
        let whole = traced(b"00-1a-2b-01", b"a=1").encode_to_vec();
        assert!(read_call(&whole[..whole.len() - 1]).is_err());
    }

    #[test]
    fn a_reader_passes_over_fields_that_it_does_not_know() {
        // As a server before the trace context, whose last field of CallPrepared had the number 2.
        let (known, unknown) = ([0x08, 9, 0x72, 2, 0x08, 3], [0x08, 9, 0x72, 7, 0x08, 3, 0x7a, 3, 1, 2, 3]);
        assert_eq!(read_call(&known[..]), read_call(&unknown[..]));
        assert!(read_call(&known[..]).is_ok());
    }

    #[test]
    fn answers_in_one_packet_have_the_computed_length() {
        let messages: Vec<_> =
            [0, 100, 60_000].map(|bytes| encode_inference(7, false, response(bytes).into(), &[]).unwrap()).into();
        let reckoned = messages.iter().map(|message| nested_bytes(message)).sum::<usize>() + ANSWERS_HEAD_BYTES;
        let mut gathered = GatheredAnswers::with_capacity(1);
        assert_eq!(gathered.take(), None);
        for message in &messages {
            gathered.push(message);
            // A single message is not wrapped, and taken messages are not sent again.
            let mut alone = GatheredAnswers::default();
            alone.push(message);
            assert_eq!((alone.take().as_ref(), alone.take()), (Some(message), None));
        }
        assert_eq!(gathered.packet_bytes(), reckoned);
        let packet = gathered.take().unwrap();
        assert!((reckoned - ANSWERS_HEAD_BYTES..=reckoned).contains(&packet.len()), "{reckoned}, {}", packet.len());
        let Some(v1::server_message::Answer::Answers(read)) = read_answer(packet).unwrap().answer else { panic!() };
        assert_eq!(read.messages, messages);
    }

    #[test]
    fn a_prepared_call_and_its_answer_have_a_few_bytes() {
        let call = v1::CallPrepared { handle: 3, ..v1::CallPrepared::default() };
        let call = v1::client_message::Call::CallPrepared(call);
        let call = v1::ClientMessage { id: 9, returned: vec![], call: Some(call) }.encode_to_vec();
        assert_eq!(call, [0x08, 0x09, 0x72, 0x02, 0x08, 0x03]);
        assert_eq!(CalledPacket::new(9).bytes(), [0x08, 0x09, 0x6a, 0x00]);
        assert_eq!(CalledPacket::new(u64::MAX).bytes().len(), CALLED_BYTES_MAX);
    }

    #[test]
    fn the_bytes_shown_in_the_documentation_are_a_hello() {
        let hello = v1::Hello { version_min: VERSION, version_max: VERSION, ..v1::Hello::default() };
        let message = v1::ClientMessage { id: 1, returned: vec![], call: Some(v1::client_message::Call::Hello(hello)) };
        let shown = [0x08, 0x01, 0x1a, 0x04, 0x08, 0x01, 0x10, 0x01];
        assert_eq!(message.encode_to_vec(), shown);
        assert_eq!(read_call(Bytes::copy_from_slice(&shown)).unwrap(), message);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let copied = read_call(&bytes[..]);
            assert_eq!(read_call(Bytes::from(bytes.clone())).ok(), copied.ok());
            let _ = read_answer(bytes.into());
        }
    }
}
