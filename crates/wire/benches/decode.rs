//! What does it cost to decode an inference request, as JSON and as protobuf?
//!
//! Run with `cargo bench -p nerite-wire`. The requests are the small ones of promises T1 and T2: 64 bytes in shared memory or inline, and 4 KiB of
//! numbers as JSON.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use nerite_memory::Buffer;
use nerite_request::limits::TensorsMax;
use nerite_request::{InferRequest, Recycled};
use nerite_wire::json::{InferText, read_infer};
use nerite_wire::proto::messages::infer_parameter::ParameterChoice;
use nerite_wire::proto::messages::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nerite_wire::proto::messages::{InferParameter, ModelInferRequest};
use nerite_wire::proto::{Chain, InferMessage};
use prost::Message;

const NUMBERS: usize = 1024;
const JSON_SHM: &str = concat!(
    r#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[16],"parameters":{"shared_memory_region":"in","#,
    r#""shared_memory_offset":0,"shared_memory_byte_size":64}}],"outputs":[{"name":"OUTPUT0","parameters":"#,
    r#"{"shared_memory_region":"out","shared_memory_offset":0,"shared_memory_byte_size":64}}]}"#
);
const JSON_BINARY: &str = concat!(
    r#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[16],"parameters":{"binary_data_size":64}}],"#,
    r#""outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}"#
);

fn read_json(json: &str, tail: &Buffer) -> Recycled<InferRequest> {
    let text = InferText {
        json: json.as_bytes(),
        tail,
        model: "identity_fp32",
        version: "",
        bytes_max: 1 << 20,
        tensors_max: TensorsMax::default(),
    };
    let Ok((request, _)) = read_infer(&text) else { panic!("a request of this benchmark is refused: {json}") };
    request
}

fn read_proto(message: &Bytes) -> Recycled<InferRequest> {
    let mut chain = Chain::new();
    chain.push(message.clone());
    let mut read = InferMessage::read(&chain).expect("prost encoded it");
    let Ok(request) = read.take_infer_request(|_| Ok(())) else { panic!("a request of this benchmark is refused") };
    request
}

fn json(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("json");
    let (none, tail) = (Buffer::empty(), Buffer::from(vec![0u8; 64]));
    group.bench_function("shm_64", |bencher| bencher.iter(|| read_json(black_box(JSON_SHM), &none)));
    group.bench_function("binary_64", |bencher| bencher.iter(|| read_json(black_box(JSON_BINARY), &tail)));
    let numbers: Vec<String> = (0..NUMBERS).map(|number| format!("{number}.25")).collect();
    let written = format!(
        r#"{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[{NUMBERS}],"data":[{}]}}]}}"#,
        numbers.join(",")
    );
    group.bench_function("numbers_1024", |bencher| bencher.iter(|| read_json(black_box(&written), &none)));
    group.finish();
}

fn parameter(choice: ParameterChoice) -> InferParameter {
    InferParameter { parameter_choice: Some(choice) }
}

fn region_parameters(name: &str) -> [(String, InferParameter); 2] {
    [
        ("shared_memory_region".to_owned(), parameter(ParameterChoice::StringParam(name.to_owned()))),
        ("shared_memory_byte_size".to_owned(), parameter(ParameterChoice::Int64Param(64))),
    ]
}

fn proto(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("proto");
    let input =
        InferInputTensor { name: "INPUT0".into(), datatype: "FP32".into(), shape: vec![16], ..Default::default() };
    let output = InferRequestedOutputTensor { name: "OUTPUT0".into(), ..Default::default() };
    let inline = ModelInferRequest {
        model_name: "identity_fp32".into(),
        inputs: vec![input.clone()],
        outputs: vec![output.clone()],
        raw_input_contents: vec![vec![0u8; 64].into()],
        ..Default::default()
    };
    let shm = ModelInferRequest {
        inputs: vec![InferInputTensor { parameters: region_parameters("in").into(), ..input }],
        outputs: vec![InferRequestedOutputTensor { parameters: region_parameters("out").into(), ..output }],
        raw_input_contents: Vec::new(),
        ..inline.clone()
    };
    for (name, request) in [("shm_64", shm), ("inline_64", inline)] {
        let message = Bytes::from(request.encode_to_vec());
        group.bench_function(name, |bencher| bencher.iter(|| read_proto(black_box(&message))));
    }
    group.finish();
}

criterion_group!(benches, json, proto);
criterion_main!(benches);
