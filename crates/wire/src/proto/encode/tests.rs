//! Is a response read as it was meant, by the schema's own reader?
#![allow(clippy::unwrap_used)]

use nerite_memory::{Buffer, Slot};
use nerite_request::Parameters;
use nerite_tensor::DataType;
use prost::Message;

use super::super::messages::infer_parameter::ParameterChoice;
use super::super::messages::{ModelInferResponse, ModelStreamInferResponse};
use super::*;

fn output(name: &str, len: usize, placed: bool) -> Output {
    let shape = [len as i64, -1].into_iter().collect();
    Output { index: 0, name: name.into(), datatype: DataType::Uint8, shape, data: Buffer::from(vec![7; len]), placed }
}

fn response(outputs: Vec<Output>) -> InferResponse {
    let mut parameters = Parameters::new();
    parameters.insert("b", Parameter::Bool(true));
    parameters.insert("i", Parameter::Int(-5));
    parameters.insert("s", Parameter::String(String::new()));
    parameters.insert("d", Parameter::Double(0.5));
    InferResponse {
        model: "m".into(),
        version: "1".into(),
        parameters,
        outputs: outputs.into(),
        ..InferResponse::default()
    }
}

fn unframe(chunks: &Chunks) -> Vec<u8> {
    let all = chunks.concat();
    let (prefix, message) = all.split_at(PREFIX_BYTES);
    assert_eq!(prefix[0], 0);
    assert_eq!(prefix[1..], u32::to_be_bytes(message.len() as u32));
    message.to_vec()
}

#[track_caller]
fn check(outputs: Vec<Output>, chunks: usize) {
    let lens: Vec<_> = outputs.iter().map(|o| if o.placed { 0 } else { o.data.len() }).collect();
    let encoded = encode_unary(response(outputs.clone()).into()).unwrap();
    assert_eq!(encoded.len(), chunks);
    let message = ModelInferResponse::decode(unframe(&encoded).as_slice()).unwrap();
    assert_eq!((message.model_name.as_str(), message.model_version.as_str(), message.id.as_str()), ("m", "1", ""));
    assert_eq!(message.parameters.len(), 4);
    assert_eq!(message.parameters["i"].parameter_choice, Some(ParameterChoice::Int64Param(-5)));
    assert_eq!(message.raw_output_contents.iter().map(Bytes::len).collect::<Vec<_>>(), lens);
    assert!(message.raw_output_contents.iter().flatten().all(|byte| *byte == 7));
    for (got, want) in message.outputs.iter().zip(&outputs) {
        assert_eq!((got.name.as_str(), got.datatype.as_str()), (want.name.as_str(), "UINT8"));
        assert_eq!(got.shape, want.shape.to_vec());
    }
    // Our bytes equal those of the generated encoder, divided into pieces.
    assert_eq!(message.encoded_len(), unframe(&encoded).len());
}

#[test]
fn large_tensors_are_chunks_and_small_ones_are_not() {
    check(vec![], 1);
    check(vec![output("a", 3, false), output("b", 0, false), output("c", 9, true)], 1);
    check(vec![output("a", CHUNK_BYTES_MIN, false)], 2);
    check(vec![output("a", 70_000, false), output("b", 1, false), output("c", 70_000, false)], 4);
}

fn notice(output: &str, byte_size: u64) -> LeaseNotice {
    let region = nerite_request::RegionRef { name: "lease-1".into(), offset: 0, byte_size };
    LeaseNotice::new(output.into(), region, || panic!("it was told"))
}

#[test]
fn the_place_of_an_output_in_a_lease_is_reported() {
    let outputs = vec![output("a", 70_000, true), output("b", 3, false)];
    let made = InferResponse { lease_notices: vec![notice("a", 70_000)], ..response(outputs) };
    for stream in [false, true] {
        let message = if stream {
            let status = StreamStatus { error: "", last: Some(true) };
            let chunks = encode_stream(
                InferResponse { lease_notices: vec![notice("a", 70_000)], ..made.clone() }.into(),
                status,
            )
            .unwrap();
            ModelStreamInferResponse::decode(unframe(&chunks).as_slice()).unwrap().infer_response.unwrap()
        } else {
            ModelInferResponse::decode(unframe(&encode_unary(made.clone().into()).unwrap()).as_slice()).unwrap()
        };
        let parameters = &message.outputs[0].parameters;
        let choice = |key: &str| parameters[key].parameter_choice.clone().unwrap();
        assert_eq!(choice("shared_memory_region"), ParameterChoice::StringParam("lease-1".into()));
        assert_eq!(choice("shared_memory_offset"), ParameterChoice::Int64Param(0));
        assert_eq!(choice("shared_memory_byte_size"), ParameterChoice::Int64Param(70_000));
        assert!(message.outputs[1].parameters.is_empty());
        assert_eq!(message.raw_output_contents.iter().map(Bytes::len).collect::<Vec<_>>(), [0, 3]);
    }
}

#[test]
fn a_large_tensor_is_sent_without_a_copy() {
    let tensor = output("a", CHUNK_BYTES_MIN, false);
    let address = tensor.data.as_ptr();
    assert_eq!(encode_unary(response(vec![tensor]).into()).unwrap()[1].as_ptr(), address);
}

#[test]
fn the_last_response_of_a_stream_is_marked() {
    let encoded =
        encode_stream(response(vec![output("a", 5000, false)]).into(), StreamStatus { error: "", last: Some(true) });
    let message = ModelStreamInferResponse::decode(unframe(&encoded.unwrap()).as_slice()).unwrap();
    assert_eq!(message.error_message, "");
    let inner = message.infer_response.unwrap();
    assert_eq!(inner.parameters[FINAL].parameter_choice, Some(ParameterChoice::BoolParam(true)));
    assert_eq!(inner.raw_output_contents[0].len(), 5000);
    let encoded = encode_stream(InferResponse::default().into(), StreamStatus { error: "no", last: None });
    let message = ModelStreamInferResponse::decode(unframe(&encoded.unwrap()).as_slice()).unwrap();
    assert_eq!((message.error_message.as_str(), message.infer_response), ("no", Some(ModelInferResponse::default())));
}

#[test]
#[ignore = "alone: takes over 1 GiB of heap"]
fn a_response_beyond_the_limit_is_an_error_with_both_numbers() {
    let half = Output { data: Slot::heap(1 << 30).filled().into_buffer(), ..output("a", 0, false) };
    let error = encode_unary(response(vec![half.clone(), half]).into()).unwrap_err();
    assert!(error.message.starts_with("Response has byte size 21474837"), "{error}");
    assert!(error.message.ends_with("which exceeds gRPC's byte size limit 2147483647."), "{error}");
}
