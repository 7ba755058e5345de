//! Is flat JSON divided into tensors and parameters as in Triton?

#![allow(clippy::unwrap_used)]

use nerite_request::{Code, Parameter};

use super::*;
use crate::json::fault::tests::without_explanation;

fn inputs() -> Vec<TensorReport> {
    let input = |name: &str, datatype, shape: &[i64]| TensorReport { name: name.into(), datatype, shape: shape.into() };
    vec![
        input("N", DataType::Int32, &[-1]),
        input("F", DataType::Fp32, &[-1, -1, 2]),
        input("S", DataType::Bytes, &[1]),
        input("H", DataType::Fp16, &[-1]),
    ]
}

fn read(json: &str) -> Result<Recycled<InferRequest>, Status> {
    let inputs = inputs();
    read_generate(&GenerateText { json: json.as_bytes(), inputs: &inputs, model: "m", version: "", bytes_max: 64 })
}

#[track_caller]
fn check(json: &str, name: &str, shape: &[i64], bytes: &[u8]) {
    let infer_request = read(json).unwrap();
    let input = infer_request.inputs.iter().find(|input| input.name == name).unwrap();
    let Source::Inline(data) = &input.source else { panic!("{input:?}") };
    assert_eq!((input.shape.as_slice(), data.private_bytes().unwrap()), (shape, bytes));
}

#[track_caller]
fn refuse(json: &str, code: Code, text: &str) {
    let status = read(json).unwrap_err();
    assert_eq!((status.code, without_explanation(&status.message)), (code, text), "{json}");
}

#[test]
fn values_fill_the_models_shape() {
    check(r#"{"N":5}"#, "N", &[1], &[5, 0, 0, 0]);
    check(r#"{"N":[5,6]}"#, "N", &[2], &[5, 0, 0, 0, 6, 0, 0, 0]);
    check(r#"{"F":[0,0,0,0]}"#, "F", &[1, 2, 2], &[0; 16]);
    check(r#"{"S":"ab"}"#, "S", &[1], b"\x02\0\0\0ab");
    check(r#"{"parameters":{"S":["ab"]}}"#, "S", &[1], b"\x02\0\0\0ab");
    check(r#"{"N":[]}"#, "N", &[], &[]);
}

#[test]
fn keys_that_name_no_input_are_parameters() {
    let infer_request = read(r#"{"id":"x","a":1,"priority":2,"parameters":{"b":true,"a":5},"N":1}"#).unwrap();
    assert_eq!((infer_request.id.as_str(), infer_request.priority, infer_request.inputs.len()), ("x", 0, 1));
    let found: Vec<_> = infer_request.parameters.iter().map(|(key, value)| (key, value.clone())).collect();
    let wanted = [
        ("id", Parameter::String("x".into())),
        ("a", Parameter::Int(1)),
        ("priority", Parameter::Int(2)),
        ("b", Parameter::Bool(true)),
    ];
    assert_eq!(found, wanted);
}

#[test]
fn an_input_that_is_given_twice_stays_in_the_request_twice() {
    for json in [r#"{"N":1,"N":2}"#, r#"{"parameters":{"N":5},"N":1}"#, r#"{"N":1,"parameters":{"N":5}}"#] {
        let infer_request = read(json).unwrap();
        let names: Vec<_> = infer_request.inputs.iter().map(|input| input.name.as_str()).collect();
        assert_eq!(names, ["N", "N"], "{json}");
    }
    let infer_request = read(r#"{"a":1,"a":2,"parameters":{"a":3},"parameters":{"b":4}}"#).unwrap();
    let found: Vec<_> = infer_request.parameters.iter().map(|(key, value)| (key, value.clone())).collect();
    assert_eq!(found, [("a", Parameter::Int(1))]);
}

#[test]
fn values_that_fit_no_input_are_refused() {
    let parameter = "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'.";
    refuse(r#"{"a":null}"#, Code::InvalidArg, parameter);
    refuse(r#"{"parameters":{"a":[]}}"#, Code::InvalidArg, &format!("Converting keyword: 'parameters': {parameter}"));
    let nested = "parameter 'parameters' has invalid type. It should be either 'int', 'bool', or 'string'.";
    refuse(
        r#"{"N":1,"parameters":{"parameters":{"a":1}}}"#,
        Code::InvalidArg,
        &format!("Converting keyword: 'parameters': {nested}"),
    );
    refuse(
        r#"{"parameters":5}"#,
        Code::Internal,
        "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object",
    );
    let message = read("[]").unwrap_err().message;
    assert_eq!(message, "attempt to get members for non-object; the body must be an object");
    refuse("[]", Code::Internal, "attempt to get members for non-object");
    refuse("", Code::Internal, "failed to parse the request JSON buffer: The document is empty. at 0");
    refuse(
        r#"{"a":null"#,
        Code::Internal,
        "failed to parse the request JSON buffer: Missing a comma or '}' after an object member. at 9",
    );
    let shape = |name: &str| format!("The schema can not convert input '{name}' to tensor with proper shape");
    refuse(r#"{"F":[1,2,3]}"#, Code::InvalidArg, &shape("F"));
    refuse(r#"{"S":["a","b"]}"#, Code::InvalidArg, &shape("S"));
    let too_many = "Unable to parse 'data': Shape does not match true shape of 'data' field";
    refuse(r#"{"N":[[1,2]]}"#, Code::Internal, too_many);
    refuse(
        r#"{"H":1}"#,
        Code::InvalidArg,
        "receiving FP16 data via JSON is not supported. Please use the binary data format for input H",
    );
    refuse(
        r#"{"N":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],"F":[0,0]}"#,
        Code::InvalidArg,
        "request size of 68 bytes with input 'F' of size 8 bytes exceeds the maximum allowed input size of 64. Use \
         --http-max-input-size to increase the limit.",
    );
}
