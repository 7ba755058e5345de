//! Which error does a message get while no memory can be reserved?
//!
//! The test has a process of its own, because it reserves all memory.
#![allow(clippy::unwrap_used)]

use nerite_memory::{Buffer, MemoryReservation};
use nerite_request::limits::TensorsMax;
use nerite_request::{Code, InferResponse, Output, Status};
use nerite_tensor::DataType;
use nerite_wire::json::{InferText, Rendering, read_infer, write_answer, write_flat};
use nerite_wire::proto::messages::model_infer_request::InferInputTensor;
use nerite_wire::proto::messages::{InferTensorContents, ModelInferRequest};
use nerite_wire::proto::{Chain, InferMessage, Malformed};
use prost::Message;

/// Reserves all memory, down to sizes smaller than any that the server reserves.
fn everything() -> Vec<MemoryReservation> {
    let sizes = (16..48).rev().map(|bits| 1usize << bits);
    sizes.flat_map(|size| std::iter::from_fn(move || MemoryReservation::take(size).ok())).collect()
}

#[track_caller]
fn check<T: std::fmt::Debug>(outcome: Result<T, Status>, what: &str) {
    let status = outcome.unwrap_err();
    let begins = format!("the server has no memory for {what}: ");
    assert_eq!((status.code, status.message.starts_with(&begins)), (Code::Unavailable, true), "{}", status.message);
}

#[track_caller]
fn check_proto(input: InferInputTensor) {
    let message = ModelInferRequest { inputs: vec![input], ..Default::default() }.encode_to_vec();
    let read = InferMessage::read(&Chain::from(bytes::Bytes::from(message))).map(drop);
    assert!(matches!(read, Err(Malformed::NoMemory(refused)) if refused.requested >= 1 << 20), "{read:?}");
}

fn answer(datatype: DataType, elements: usize, bytes: usize) -> InferResponse {
    let (name, shape) = ("OUT".to_owned(), [elements as i64][..].into());
    let output =
        Output { index: 0, name: name.into(), datatype, shape, data: Buffer::from(vec![0; bytes]), placed: false };
    InferResponse { outputs: vec![output].into(), ..InferResponse::default() }
}

fn read(json: &[u8]) -> Result<(), Status> {
    let tail = Buffer::empty();
    read_infer(&InferText {
        json,
        tail: &tail,
        model: "m",
        version: "",
        bytes_max: u64::MAX,
        tensors_max: TensorsMax::default(),
    })
    .map(drop)
}

#[test]
fn large_messages_are_refused_and_small_ones_are_read() {
    let long = format!(r#"{{"id":"{}","inputs":[]}}"#, "a".repeat(1 << 20));
    let numbers = r#"{"inputs":[{"name":"IN","datatype":"FP64","shape":[100000],"data":[0"#.to_owned()
        + &",0".repeat(99_999)
        + "]}]}";
    let inputs = r#"{"inputs":["#.to_owned()
        + &vec![r#"{"name":"a","datatype":"FP32","shape":[1],"data":[1]}"#; 4000].join(",")
        + "]}";
    let texts = answer(DataType::Fp32, 1 << 20, 4 << 20);
    let strings = answer(DataType::Bytes, 1 << 17, 1 << 19);
    let none = || InferInputTensor::default();
    let contents = |contents| InferInputTensor { contents: Some(contents), ..none() };

    let held = everything();
    check(read(long.as_bytes()), "what a request says");
    check(read(numbers.as_bytes()), "input 'IN'");
    check(read(inputs.as_bytes()), "what a request says");
    check(write_answer(texts.into(), &Rendering::all(false)), "the text of output 'OUT' of 4194304 bytes");
    check(write_flat(&strings), "the text of output 'OUT' of 524288 bytes");
    check_proto(contents(InferTensorContents { int64_contents: vec![1; 1 << 16], ..Default::default() }));
    check_proto(contents(InferTensorContents {
        bytes_contents: vec![bytes::Bytes::new(); 1 << 14],
        ..Default::default()
    }));
    // Small amounts are not reserved.
    read(br#"{"inputs":[{"name":"IN","datatype":"FP64","shape":[2],"data":[1,2]}]}"#).unwrap();
    write_answer(answer(DataType::Fp32, 4, 16).into(), &Rendering::all(false)).unwrap();
    drop(held);
    read(numbers.as_bytes()).unwrap();
    read(inputs.as_bytes()).unwrap();
}
