//! Is a response encoded as clients expect it?

#![allow(clippy::unwrap_used)]

use nerite_request::Parameters;

use super::*;

fn output(name: &str, datatype: DataType, shape: &[i64], data: Vec<u8>) -> Output {
    Output { index: 0, name: name.into(), datatype, shape: shape.into(), data: Buffer::from(data), placed: false }
}

fn response(outputs: Vec<Output>) -> InferResponse {
    InferResponse { model: "m".into(), version: "1".into(), outputs: outputs.into(), ..InferResponse::default() }
}

#[track_caller]
fn check(response: InferResponse, binary: bool, head: &str, tail: &[&[u8]]) {
    let answer = write_answer(response.into(), &Rendering::all(binary)).unwrap();
    assert_eq!(std::str::from_utf8(&answer.head).unwrap(), head);
    let sent: Vec<_> = answer.tail.iter().map(|buffer| buffer.private_bytes().unwrap()).collect();
    assert_eq!(sent, tail);
}

#[track_caller]
fn check_data(datatype: DataType, data: &[u8], count: i64, text: &str) {
    let head = format!(
        r#"{{"model_name":"m","model_version":"1","outputs":[{{"name":"O","datatype":"{datatype}","shape":[{count}],"data":[{text}]}}]}}"#
    );
    check(response(vec![output("O", datatype, &[count], data.to_vec())]), false, &head, &[]);
}

#[track_caller]
fn refuse(datatype: DataType, count: i64, data: &[u8], text: &str) {
    let answer =
        write_answer(response(vec![output("O", datatype, &[count], data.to_vec())]).into(), &Rendering::all(false));
    assert_eq!(answer.unwrap_err().message, text);
}

#[test]
fn json_data_is_flat_and_typed() {
    check_data(DataType::Bool, &[0, 1, 7], 3, "false,true,true");
    check_data(DataType::Uint8, &[0, 255], 2, "0,255");
    check_data(DataType::Int8, &[0, 255], 2, "0,-1");
    check_data(DataType::Uint16, &[1, 2], 1, "513");
    check_data(DataType::Int16, &[254, 255], 1, "-2");
    check_data(DataType::Uint32, &u32::MAX.to_le_bytes(), 1, "4294967295");
    check_data(DataType::Int32, &i32::MIN.to_le_bytes(), 1, "-2147483648");
    check_data(DataType::Uint64, &u64::MAX.to_le_bytes(), 1, "18446744073709551615");
    check_data(DataType::Int64, &i64::MIN.to_le_bytes(), 1, "-9223372036854775808");
    check_data(DataType::Fp32, &[0.1f32.to_le_bytes(), 2f32.to_le_bytes()].concat(), 2, "0.10000000149011612,2.0");
    check_data(DataType::Fp64, &f64::NAN.to_le_bytes(), 1, "NaN");
    check_data(DataType::Bytes, b"\x02\0\0\0ab\x01\0\0\0\"", 2, r#""ab","\"""#);
    check_data(DataType::Fp32, &[], 0, "");
}

#[test]
fn half_floats_and_wrong_sizes_are_refused() {
    let half = "data via JSON is not supported. Please use the binary data format for output";
    refuse(DataType::Fp16, 1, &[0, 0], &format!("sending FP16 {half}"));
    refuse(DataType::Bf16, 1, &[0, 0], &format!("sending BF16 {half}"));
    let size = "output tensor shape does not match size of output for 'O'";
    refuse(DataType::Int32, 2, &[0; 4], size);
    refuse(DataType::Bytes, 2, b"\x01\0\0\0a", size);
    refuse(DataType::Bytes, 1, b"\x09\0\0\0a", size);
}

#[test]
fn binary_outputs_follow_the_text_and_empty_ones_are_only_named() {
    let outputs = vec![
        output("A", DataType::Int32, &[1], vec![1, 0, 0, 0]),
        output("B", DataType::Int32, &[0], vec![]),
        output("C", DataType::Fp16, &[1], vec![2, 3]),
    ];
    check(
        response(outputs),
        true,
        r#"{"model_name":"m","model_version":"1","outputs":[{"name":"A","datatype":"INT32","shape":[1],"parameters":{"binary_data_size":4}},{"name":"B","datatype":"INT32","shape":[0],"parameters":{"binary_data_size":0}},{"name":"C","datatype":"FP16","shape":[1],"parameters":{"binary_data_size":2}}]}"#,
        &[&[1, 0, 0, 0], &[2, 3]],
    );
}

#[test]
fn placed_outputs_are_named_only_and_id_and_parameters_stand_before_them() {
    let mut parameters = Parameters::new();
    parameters.insert("sequence_id", Parameter::Int(7));
    parameters.insert("ok", Parameter::Bool(true));
    parameters.insert("why", Parameter::String("x".into()));
    parameters.insert("how", Parameter::Double(0.5));
    let placed = Output { placed: true, ..output("A", DataType::Int32, &[1, 1], vec![0; 4]) };
    let response = InferResponse { id: "r".into(), parameters, ..response(vec![placed]) };
    check(
        response,
        true,
        r#"{"id":"r","model_name":"m","model_version":"1","parameters":{"sequence_id":7,"ok":true,"why":"x","how":0.5},"outputs":[{"name":"A","datatype":"INT32","shape":[1,1]}]}"#,
        &[],
    );
}

#[test]
fn the_place_of_an_output_in_a_lease_is_reported() {
    let placed = Output { placed: true, ..output("O", DataType::Int8, &[3], vec![1, 2, 3]) };
    let region = nerite_request::RegionRef { name: "lease-1".into(), offset: 0, byte_size: 3 };
    let notices = vec![LeaseNotice::new("O".into(), region, || panic!("it was told"))];
    let response =
        InferResponse { lease_notices: notices, ..response(vec![placed, output("P", DataType::Int8, &[1], vec![4])]) };
    let head = r#"{"model_name":"m","model_version":"1","outputs":[{"name":"O","datatype":"INT8","shape":[3],"parameters":{"shared_memory_region":"lease-1","shared_memory_offset":0,"shared_memory_byte_size":3}},{"name":"P","datatype":"INT8","shape":[1],"parameters":{"binary_data_size":1}}]}"#;
    check(response, true, head, &[&[4]]);
}
