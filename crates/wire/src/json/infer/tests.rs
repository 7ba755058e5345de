//! Does the reader accept and refuse inference requests as Triton's reader does?

#![allow(clippy::unwrap_used)]

mod any_text;
mod limits;
mod parameters;

use nerite_request::{Code, Parameter, Source};
use nerite_tensor::DataType;

use super::*;
use crate::json::fault::tests::without_explanation;

const MAX: u64 = 1 << 20;
const INVALID: Code = Code::InvalidArg;
const INTERNAL: Code = Code::Internal;

fn read_with(json: &str, tail: &[u8]) -> Result<(Recycled<InferRequest>, Rendering), Status> {
    let tail = Buffer::from(tail.to_vec());
    read_infer(&InferText {
        json: json.as_bytes(),
        tail: &tail,
        model: "m",
        version: "1",
        bytes_max: MAX,
        tensors_max: TensorsMax::default(),
    })
}

fn read(json: &str) -> Result<(Recycled<InferRequest>, Rendering), Status> {
    read_with(json, b"")
}

#[track_caller]
fn refuse(json: &str, code: Code, text: &str) {
    let status = read(json).map(|(infer_request, _)| infer_request).unwrap_err();
    assert_eq!((status.code, without_explanation(&status.message)), (code, text), "{json}");
}

/// Checks the text that follows Triton's error text if a value has the wrong type.
#[track_caller]
fn explain(json: &str, text: &str) {
    let message = read(json).map(|(infer_request, _)| infer_request).unwrap_err().message;
    assert_eq!(&message[without_explanation(&message).len()..], format!("; {text}"), "{json}");
}

/// The members of a request with one input.
fn one_input(members: &str) -> String {
    format!(r#"{{"inputs":[{{"name":"I",{members}}}]}}"#)
}

fn json_input(datatype: &str, shape: &str, data: &str) -> String {
    one_input(&format!(r#""datatype":"{datatype}","shape":{shape},"data":{data}"#))
}

#[track_caller]
fn inline(infer_request: &InferRequest, at: usize) -> Vec<u8> {
    match &infer_request.inputs[at].source {
        Source::Inline(buffer) => buffer.private_bytes().unwrap().to_vec(),
        Source::Region(region) => panic!("{region:?}"),
    }
}

#[track_caller]
fn check_data(datatype: &str, shape: &str, data: &str, bytes: &[u8]) {
    let (infer_request, _) = read(&json_input(datatype, shape, data)).unwrap();
    assert_eq!(inline(&infer_request, 0), bytes, "{data}");
}

#[track_caller]
fn refuse_data(datatype: &str, shape: &str, data: &str, code: Code, text: &str) {
    refuse(&json_input(datatype, shape, data), code, text);
    // The error is the same if the values precede the datatype and the shape.
    refuse(&one_input(&format!(r#""data":{data},"datatype":"{datatype}","shape":{shape}"#)), code, text);
}

#[test]
fn invalid_json_is_refused_with_rapidjsons_error_texts() {
    for (json, reason, offset) in [
        ("", "The document is empty.", 0),
        ("  ", "The document is empty.", 2),
        ("}", "The document is empty.", 0),
        ("{", "Missing a name for object member.", 1),
        ("{a", "Missing a name for object member.", 1),
        (r#"{"a":1,}"#, "Missing a name for object member.", 7),
        (r#"{"a""#, "Missing a colon after a name of object member.", 4),
        (r#"{"a" 1"#, "Missing a colon after a name of object member.", 5),
        (r#"{"a":1"#, "Missing a comma or '}' after an object member.", 6),
        (r#"{"a":1 "b""#, "Missing a comma or '}' after an object member.", 7),
        (r#"{"a":"#, "Invalid value.", 5),
        (r#"{"a":}"#, "Invalid value.", 5),
        ("[1,]", "Invalid value.", 3),
        ("[1 2", "Missing a comma or ']' after an array element.", 3),
        ("[01]", "Missing a comma or ']' after an array element.", 2),
        ("{} {}", "The document root must not be followed by other values.", 3),
        ("nan", "Invalid value.", 1),
        ("inf", "Invalid value.", 0),
        ("tru", "Invalid value.", 3),
        ("Infinit", "Invalid value.", 7),
        ("-", "Invalid value.", 1),
        ("+1", "Invalid value.", 0),
        ("1.", "Miss fraction part in number.", 2),
        ("1e", "Miss exponent in number.", 2),
        ("1e+", "Miss exponent in number.", 3),
        ("[1e999]", "Number too big to be stored in double.", 1),
        (r#"["a"#, "Missing a closing quotation mark in string.", 3),
        (r#"["\x"]"#, "Invalid escape character in string.", 2),
        ("[\"\u{1}\"]", "Invalid escape character in string.", 2),
        (r#"["\u12g4"]"#, "Incorrect hex digit after \\u escape in string.", 2),
        (r#"["\ud800x"]"#, "The surrogate pair in string is invalid.", 2),
        (r#"["\udc00"]"#, "The surrogate pair in string is invalid.", 2),
    ] {
        refuse(json, INTERNAL, &format!("failed to parse the request JSON buffer: {reason} at {offset}"));
    }
}

#[test]
fn a_syntax_error_anywhere_wins_over_a_wrong_value_before_it() {
    let text = "failed to parse the request JSON buffer: Missing a comma or '}' after an object member. at 21";
    refuse(r#"{"id":5,"inputs":null"#, INTERNAL, text);
    let text = "failed to parse the request JSON buffer: The document root must not be followed by other values. at 69";
    refuse(&(json_input("INT32", "[1]", r#"["x"]"#) + "]"), INTERNAL, text);
}

#[test]
fn checks_come_in_tritons_order_whatever_the_order_of_the_keys() {
    let not_string = "Unable to parse 'id': attempt to access JSON non-string as string";
    refuse(r#"{"outputs":5,"inputs":5,"parameters":5,"id":5}"#, INTERNAL, not_string);
    refuse(r#"{"id":null,"inputs":[]}"#, INTERNAL, not_string);
    let no_object = "failed to get request params.: attempt to get members for non-object";
    refuse(r#"{"outputs":5,"inputs":5,"parameters":null}"#, INTERNAL, no_object);
    refuse(
        r#"{"outputs":5,"inputs":5}"#,
        INTERNAL,
        "Unable to parse 'inputs': attempt to access JSON non-array as array",
    );
    let no_inputs = "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'";
    refuse("{}", INTERNAL, no_inputs);
    refuse("[]", INTERNAL, no_inputs);
    refuse("3", INTERNAL, no_inputs);
    let outputs = "Unable to parse 'outputs': attempt to access JSON non-array as array";
    refuse(r#"{"inputs":[],"outputs":null}"#, INTERNAL, outputs);
    refuse(
        r#"{"inputs":[{"shape":"x","name":5,"data":"x","datatype":"Z"}]}"#,
        INTERNAL,
        "Unable to parse 'name': attempt to access JSON non-string as string",
    );
}

#[test]
fn an_input_says_where_its_data_is_exactly_once() {
    let only = "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', \
                'shared_memory_region' in 'parameters'. But";
    refuse(r#"{"inputs":[5]}"#, INVALID, &format!("{only} no field is set"));
    refuse(&one_input(r#""parameters":null"#), INVALID, &format!("{only} no field is set"));
    refuse(&one_input(r#""parameters":{"shared_memory_offset":1}"#), INVALID, &format!("{only} no field is set"));
    refuse(
        r#"{"inputs":[{"data":[],"parameters":{"shared_memory_region":"r"}}]}"#,
        INVALID,
        &format!("{only} set 'data' 'shared_memory_region'"),
    );
    refuse(
        r#"{"inputs":[{"parameters":{"shared_memory_region":1,"binary_data_size":"x"},"data":5}]}"#,
        INVALID,
        &format!("{only} set 'data' 'binary_data_size' 'shared_memory_region'"),
    );
}

#[test]
fn an_inputs_fields_are_refused_by_name() {
    let absent =
        |name: &str| format!("Unable to parse '{name}': attempt to access non-existing object member '{name}'");
    refuse(r#"{"inputs":[{"data":[1]}]}"#, INTERNAL, &absent("name"));
    refuse(&one_input(r#""data":[1]"#), INTERNAL, &absent("datatype"));
    refuse(&one_input(r#""data":[1],"datatype":"INT32""#), INTERNAL, &absent("shape"));
    let unsigned = "attempt to access JSON non-unsigned-integer as unsigned-integer";
    refuse_data("INT32", "[-1]", "[1]", INTERNAL, &format!("Unable to parse 'shape': {unsigned}"));
    refuse_data("INT32", "5", "[1]", INTERNAL, "Unable to parse 'shape': attempt to access JSON non-array as array");
    let shm = |keys: &str| one_input(&format!(r#""datatype":"INT32","shape":[1],"parameters":{{{keys}}}"#));
    refuse(
        &shm(r#""shared_memory_region":5"#),
        INTERNAL,
        "Unable to parse 'shared_memory_region': attempt to access JSON non-string as string",
    );
    refuse(
        &shm(r#""shared_memory_region":"r","shared_memory_offset":"0""#),
        INTERNAL,
        &format!("Unable to parse 'shared_memory_offset': {unsigned}"),
    );
    refuse(
        &shm(r#""shared_memory_region":"r","shared_memory_byte_size":1.5"#),
        INTERNAL,
        &format!("Unable to parse 'shared_memory_byte_size': {unsigned}"),
    );
    // This is so even if no region is named.
    let beside =
        |key: &str| one_input(&format!(r#""datatype":"INT32","shape":[1],"data":[1],"parameters":{{"{key}":"1"}}"#));
    for key in ["shared_memory_offset", "shared_memory_byte_size"] {
        refuse(&beside(key), INTERNAL, &format!("Unable to parse '{key}': {unsigned}"));
    }
    refuse(&shm(r#""binary_data_size":-4"#), INTERNAL, &format!("Unable to parse 'binary_data_size': {unsigned}"));
}

#[test]
fn a_member_of_the_wrong_type_is_named_with_its_input_or_output() {
    explain(r#"{"id":5}"#, "'id' must be a string");
    explain(r#"{"inputs":5}"#, "'inputs' must be an array");
    explain(r#"{"inputs":[],"outputs":5}"#, "'outputs' must be an array");
    explain(r#"{"inputs":[],"parameters":5}"#, "'parameters' must be an object");
    explain(r#"{"inputs":[],"parameters":{"timeout":-1}}"#, "parameter 'timeout' must be an integer of 0 or more");
    explain(r#"{"inputs":[{"name":5,"data":[]}]}"#, "'name' of an input must be a string");
    explain(&one_input(r#""datatype":5,"data":[1]"#), "'datatype' of input 'I' must be a string");
    for shape in ["5", "[-1]", r#"["1"]"#, "null"] {
        let input = json_input("INT32", shape, "[1]");
        explain(&input, "'shape' of input 'I' must be an array of integers of 0 or more");
    }
    explain(&json_input("INT32", "[1]", "5"), "'data' of input 'I' must be an array");
    explain(&json_input("FP32", "[1]", "[[null]]"), "each value of input 'I' must be a number");
    explain(&json_input("BOOL", "[1]", "[1]"), "each value of input 'I' must be true or false");
    explain(&json_input("BYTES", "[1]", "[1]"), "each value of input 'I' must be a string");
    let shm = one_input(r#""datatype":"INT32","shape":[1],"parameters":{"binary_data_size":"4"}"#);
    explain(&shm, "'binary_data_size' of input 'I' must be an integer of 0 or more");
    let output = |members: &str| format!(r#"{{"inputs":[],"outputs":[{{{members}}}]}}"#);
    explain(&output(r#""name":[]"#), "'name' of an output must be a string");
    let parameters = output(r#""name":"O","parameters":{"classification":"1"}"#);
    explain(&parameters, "'classification' of output 'O' must be an integer of 0 or more");
    let long = format!(r#""name":"{}","parameters":{{"shared_memory_region":"r","binary_data":1}}"#, "ö".repeat(1000));
    explain(&output(&long), &format!("'binary_data' of output '{}…' must be true or false", "ö".repeat(256)));
    let both = output(r#""name":"O","parameters":{"shared_memory_region":"r","binary_data":1}"#);
    explain(&both, "'binary_data' of output 'O' must be true or false");
}

#[test]
fn values_become_little_endian_elements() {
    check_data("BOOL", "[3]", "[true,false,true]", &[1, 0, 1]);
    check_data("UINT8", "[2]", "[255, 257]", &[255, 1]);
    check_data("INT8", "[2]", "[-1,200]", &[255, 200]);
    check_data("UINT16", "[1]", "[513]", &[1, 2]);
    check_data("INT16", "[1]", "[-2]", &[254, 255]);
    check_data("UINT32", "[1]", "[4294967295]", &[255; 4]);
    check_data("INT32", "[2,1]", "[[1],[-2147483648]]", &[1, 0, 0, 0, 0, 0, 0, 128]);
    check_data("UINT64", "[1]", "[18446744073709551615]", &[255; 8]);
    check_data("INT64", "[2]", "[-9223372036854775808,-0]", &[0, 0, 0, 0, 0, 0, 0, 128, 0, 0, 0, 0, 0, 0, 0, 0]);
    let floats = [1.0f32, -2.5, 1e10, 0.1, f32::INFINITY, f32::NEG_INFINITY].map(f32::to_le_bytes).concat();
    check_data("FP32", "[6]", " [ 1 , [ -2.5 ] , 1E+10 , 0.1 , Inf, -Infinity ] ", &floats);
    check_data("FP64", "[2]", "[18446744073709551616,1e-400]", &[2f64.powi(64), 0.0].map(f64::to_le_bytes).concat());
    assert!(
        f64::from_le_bytes(inline(&read(&json_input("FP64", "[1]", "[NaN]")).unwrap().0, 0).try_into().unwrap())
            .is_nan()
    );
    check_data("BYTES", "[2]", r#"["ab",[["\"\u00e9\ud83d\ude00\n"]]]"#, "\x02\0\0\0ab\x08\0\0\0\"é😀\n".as_bytes());
    check_data("BYTES", "[7]", r#"[""]"#, &[0; 4]);
    check_data("INT32", "[0]", r#"["ignored"]"#, &[]);
    check_data("INT32", "[2]", "[[],[1,[2]],[]]", &[1, 0, 0, 0, 2, 0, 0, 0]);
}

#[test]
fn values_that_do_not_fit_are_refused() {
    let in_data = |text: &str| format!("Unable to parse 'data': attempt to access JSON {text}");
    refuse_data("FP32", "[1]", r#"["1"]"#, INTERNAL, &in_data("non-number as double"));
    refuse_data("FP32", "[1]", "[null]", INTERNAL, &in_data("non-number as double"));
    refuse_data("INT32", "[1]", "[1.0]", INTERNAL, &in_data("non-signed-integer as signed-integer"));
    refuse_data("INT64", "[1]", "[9223372036854775808]", INTERNAL, &in_data("non-signed-integer as signed-integer"));
    refuse_data("UINT8", "[1]", "[-1]", INTERNAL, &in_data("non-unsigned-integer as unsigned-integer"));
    refuse_data("BOOL", "[1]", "[1]", INTERNAL, &in_data("non-boolean as boolean"));
    refuse_data("INT32", "[1]", "[{}]", INTERNAL, &in_data("non-signed-integer as signed-integer"));
    refuse_data("INT32", "[1]", "5", INTERNAL, &in_data("non-array as array"));
    let strings = "Unable to parse JSON bytes array: attempt to access JSON non-string as string";
    refuse_data("BYTES", "[1]", "[5]", INTERNAL, strings);
    let too_many = "Unable to parse 'data': Shape does not match true shape of 'data' field";
    refuse_data("INT32", "[2]", "[1,2,3]", INTERNAL, too_many);
    refuse_data("INT32", "[2]", "[1]", INTERNAL, "Failed to parse 'data' field: shape does not match true shape");
    for half in ["FP16", "BF16"] {
        let text =
            format!("receiving {half} data via JSON is not supported. Please use the binary data format for input I");
        refuse_data(half, "[1]", "[1]", INVALID, &text);
    }
    refuse_data("FP8", "[1]", "[1]", INVALID, "invalid datatype for input I");
    let deep = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    check_data("INT8", "[1]", &deep(100), &[1]);
    let too_deep = "JSON nesting depth exceeds maximum allowed limit (100)";
    refuse_data("INT8", "[1]", &deep(101), INVALID, &format!("Unable to parse 'data': {too_deep}"));
    refuse_data("BYTES", "[1]", &deep(120), INVALID, too_deep);
}

#[test]
fn huge_shapes_are_refused_before_memory_is_allocated() {
    let max = i64::MAX;
    let invalid = |shape: &str, rest: &str| format!("invalid shape for input 'I': shape {shape} {rest}");
    refuse_data(
        "FP32",
        "[18446744073709551615]",
        "[1]",
        INVALID,
        &invalid("[-1]", "contains one or more invalid dimensions"),
    );
    let count = format!("causes total element count to exceed maximum size of {max}");
    refuse_data("FP32", "[16,1152921504606846978]", "[1]", INVALID, &invalid("[16,1152921504606846978]", &count));
    refuse_data(
        "FP32",
        "[4,1152921504606846978]",
        "[1]",
        INVALID,
        &format!(
            "byte size overflow for input 'I': element count (4611686018427387912) * data type size (4) exceeds maximum \
         allowed size ({max})"
        ),
    );
    let limit = format!(
        "JSON input 'I' has a byte_size (4000000 bytes) that exceeds the maximum allowed value of {MAX} bytes. Use \
         --http-max-input-size to increase the limit."
    );
    refuse_data("FP32", "[1000000]", "[1]", INVALID, &limit);
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX as usize));
    refuse(
        &long,
        INVALID,
        &format!(
            "request JSON size of {} bytes exceeds the maximum allowed input size of {MAX} bytes. Use \
         --http-max-input-size to increase the limit.",
            long.len()
        ),
    );
}

fn binary(name: &str, size: &str) -> String {
    format!(r#"{{"name":"{name}","datatype":"UINT8","shape":[1],"parameters":{{"binary_data_size":{size}}}}}"#)
}

#[test]
fn binary_inputs_are_slices_of_the_tail_in_order() {
    let json = format!(r#"{{"inputs":[{},{},{}]}}"#, binary("A", "3"), binary("B", "0"), binary("C", "1"));
    let tail = Buffer::from(vec![1, 2, 3, 4]);
    let text = InferText {
        json: json.as_bytes(),
        tail: &tail,
        model: "m",
        version: "",
        bytes_max: MAX,
        tensors_max: TensorsMax::default(),
    };
    let (infer_request, _) = read_infer(&text).unwrap();
    assert_eq!(
        [inline(&infer_request, 0), inline(&infer_request, 1), inline(&infer_request, 2)],
        [vec![1, 2, 3], vec![], vec![4]]
    );
    let Source::Inline(first) = &infer_request.inputs[0].source else { panic!("{infer_request:?}") };
    assert_eq!(first.as_ptr(), tail.as_ptr());
}

#[test]
fn a_tail_too_short_or_too_long_is_refused() {
    let short = read_with(&format!(r#"{{"inputs":[{}]}}"#, binary("A", "6")), &[0; 4]).unwrap_err();
    assert_eq!(short.message, "unexpected size for input 'A', expecting 2 additional bytes for model 'm'");
    let long = read_with(&format!(r#"{{"inputs":[{}]}}"#, binary("A", "3")), &[0; 4]).unwrap_err();
    assert_eq!(long.message, "unexpected additional input data for model 'm'");
    let most = read_with(&format!(r#"{{"inputs":[{}]}}"#, binary("A", "18446744073709551615")), &[0; 4]).unwrap_err();
    assert_eq!(
        most.message,
        "unexpected size for input 'A', expecting 18446744073709551611 additional bytes for model 'm'"
    );
}

#[test]
fn a_region_is_named_with_its_offset_and_size() {
    let (infer_request, _) = read(
        r#"{"inputs":[{"name":"I","datatype":"FP16","shape":[2,3],"parameters":{"shared_memory_region":"r","shared_memory_byte_size":12,"shared_memory_offset":64}}],
           "outputs":[{"name":"O","parameters":{"shared_memory_region":"s","shared_memory_byte_size":4,"binary_data":false}},{"name":"P","parameters":{"classification":3}}]}"#,
    )
    .unwrap();
    let input = &infer_request.inputs[0];
    assert_eq!((input.datatype, input.shape.as_slice()), (DataType::Fp16, &[2, 3][..]));
    let Source::Region(region) = &input.source else { panic!("{input:?}") };
    assert_eq!((region.name.as_str(), region.offset, region.byte_size), ("r", 64, 12));
    let placed = infer_request.outputs[0].region.as_ref().unwrap();
    assert_eq!((placed.name.as_str(), placed.offset, placed.byte_size), ("s", 0, 4));
    assert_eq!((infer_request.outputs[1].name.as_str(), infer_request.outputs[1].classes), ("P", 3));
}

#[test]
fn an_output_may_let_the_server_choose_its_place() {
    let key = "session-0000000000000000000000000000000a-7";
    let place = |more: &str| {
        let text = format!(
            r#"{{"inputs":[],"outputs":[{{"name":"O","parameters":{{"shared_memory_region":"{key}"{more}}}}}]}}"#
        );
        read(&text)
    };
    for more in ["", r#","shared_memory_byte_size":0,"binary_data":false"#, r#","shared_memory_offset":0"#] {
        let (infer_request, rendering) = place(more).unwrap();
        let session = infer_request.outputs[0].session.expect("a session");
        assert_eq!((session.to_string().as_str(), session.key, session.tag), (key, 10, 7));
        assert_eq!(infer_request.outputs[0].region, None);
        assert!(
            rendering.is_binary("O"),
            "an output that fits into no lease is sent in a form that every datatype has"
        );
    }
    let (infer_request, rendering) = place(r#","shared_memory_byte_size":4"#).unwrap();
    assert!(
        infer_request.outputs[0].session.is_none()
            && infer_request.outputs[0].region.is_some()
            && !rendering.is_binary("O")
    );
    let both = "Output can't set both 'shared_memory_region' and 'classification'";
    assert_eq!(place(r#","classification":2"#).unwrap_err().message, both);
}

#[test]
fn an_outputs_fields_are_refused_by_name() {
    let refuse_output = |members: &str, code, text: &str| {
        refuse(&format!(r#"{{"inputs":[],"outputs":[{members}]}}"#), code, text);
    };
    let absent = "Unable to parse 'name': attempt to access non-existing object member 'name'";
    refuse_output("5", INTERNAL, absent);
    refuse_output(r#"{"parameters":{"binary_data":1}}"#, INTERNAL, absent);
    let bool_text = "attempt to access JSON non-boolean as boolean";
    refuse_output(
        r#"{"name":"O","parameters":{"binary_data":1}}"#,
        INTERNAL,
        &format!("Unable to parse 'binary_data': {bool_text}"),
    );
    refuse_output(
        r#"{"name":"O","parameters":{"classification":-1}}"#,
        INTERNAL,
        "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer",
    );
    let with_region = |key: &str| format!(r#"{{"name":"O","parameters":{{"shared_memory_region":"r",{key}}}}}"#);
    let both = |key: &str| format!("Output can't set both 'shared_memory_region' and '{key}'");
    refuse_output(&with_region(r#""classification":1"#), INVALID, &both("classification"));
    refuse_output(&with_region(r#""binary_data":true"#), INVALID, &both("binary_data"));
    refuse_output(&with_region(r#""binary_data":1"#), INTERNAL, &format!("Unable to set 'binary_data': {bool_text}"));
}

#[test]
fn outputs_are_sent_as_each_of_them_requests() {
    let rendering = |json: &str| read(json).unwrap().1;
    assert_eq!(rendering(r#"{"inputs":[]}"#), Rendering::all(false));
    assert_eq!(
        rendering(r#"{"inputs":[],"outputs":[],"parameters":{"binary_data_output":true}}"#),
        Rendering::all(true)
    );
    // An output that is listed without `binary_data` is JSON, whatever the request's parameter says.
    let json = r#"{"inputs":[],"outputs":[{"name":"A"},{"name":"B","parameters":{"binary_data":true}},{"name":"C","parameters":null}],"parameters":{"binary_data_output":true}}"#;
    let mixed = rendering(json);
    assert_eq!(["A", "B", "C"].map(|name| mixed.is_binary(name)), [false, true, false]);
}

#[test]
fn the_first_value_of_a_repeated_key_counts_even_if_the_second_is_wrong() {
    let (infer_request, _) = read(r#"{"id":"a","id":5,"inputs":[],"inputs":5,"parameters":{"k":1,"k":null}}"#).unwrap();
    assert_eq!((infer_request.id.as_str(), infer_request.parameters.get("k")), ("a", Some(&Parameter::Int(1))));
}

#[test]
fn a_raw_body_is_the_one_input() {
    let (infer_request, rendering) = read_raw_infer(Buffer::from(vec![1, 2]), "m", "", MAX).unwrap();
    assert_eq!((infer_request.raw_input.as_ref().unwrap().len(), rendering), (2, Rendering::all(true)));
    let status = read_raw_infer(Buffer::from(vec![1, 2]), "m", "", 1).unwrap_err();
    assert_eq!(
        status.message,
        "Raw input has a byte_size (2 bytes) that exceeds the maximum allowed value of 1 bytes. Use \
         --http-max-input-size to increase the limit."
    );
}
