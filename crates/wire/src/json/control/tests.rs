//! Are the bodies of all calls except inference read as in Triton?

#![allow(clippy::unwrap_used)]

use nerite_request::Code;

use super::*;
use crate::json::fault::tests::without_explanation;

#[track_caller]
fn check<T: std::fmt::Debug + PartialEq>(got: Result<T, Status>, wanted: Result<T, (Code, &str)>) {
    let got = got.map_err(|s| (s.code, without_explanation(&s.message).to_string()));
    assert_eq!(got, wanted.map_err(|(code, text)| (code, text.to_string())));
}

const INVALID: Code = Code::InvalidArg;
const INTERNAL: Code = Code::Internal;

#[test]
fn a_system_registration_needs_key_and_size() {
    let read = |text: &str| read_system_register(text.as_bytes());
    let region = |offset, byte_size| SystemRegister { key: "/k".into(), offset, byte_size };
    check(read(r#"{"key":"/k","byte_size":64}"#), Ok(region(0, 64)));
    check(read(r#" {"byte_size":64, "offset":4096,"key":"/k","more":[{}]} "#), Ok(region(4096, 64)));
    check(read(r#"{"key":"/k","byte_size":1,"byte_size":2}"#), Ok(region(0, 1)));
    check(read(""), Err((INTERNAL, "failed to parse the request JSON buffer: The document is empty. at 0")));
    check(read("{}"), Err((INVALID, "Shared memory register request has no 'key' field")));
    check(read("[]"), Err((INVALID, "Shared memory register request has no 'key' field")));
    check(read(r#"{"key":1,"byte_size":64}"#), Err((INTERNAL, "attempt to access JSON non-string as string")));
    check(read(r#"{"key":"/k"}"#), Err((INVALID, "Shared memory register request has no 'byte_size' field")));
    let unsigned = "attempt to access JSON non-unsigned-integer as unsigned-integer";
    check(read(r#"{"key":"/k","byte_size":-1}"#), Err((INTERNAL, unsigned)));
    check(read(r#"{"key":"/k","byte_size":1.0}"#), Err((INTERNAL, unsigned)));
    check(read(r#"{"key":"/k","offset":-4096,"byte_size":64}"#), Err((INTERNAL, unsigned)));
    check(
        read(r#"{"key":1,"byte_size":64"#),
        Err((
            INTERNAL,
            "failed to parse the request JSON buffer: Missing a comma or '}' after an object member. at 23",
        )),
    );
}

#[test]
fn a_cuda_registration_needs_a_handle_a_device_and_a_size() {
    let read = |text: &str| read_cuda_register(text.as_bytes());
    let b64 = format!("{}==", "A".repeat(86));
    let good = format!(r#"{{"raw_handle":{{"b64":"{b64}"}},"device_id":1,"byte_size":64}}"#);
    check(read(&good), Ok(CudaRegister { raw_handle: vec![0; 64], device_id: 1, byte_size: 64 }));
    check(read("{}"), Err((INVALID, "Shared memory register request has no 'raw_handle' field")));
    check(read(r#"{"raw_handle":{}}"#), Err((INTERNAL, "attempt to access non-existing object member 'b64'")));
    check(
        read(r#"{"raw_handle":{"b64":"AA"}}"#),
        Err((INTERNAL, "attempt to access non-existing object member 'byte_size'")),
    );
    check(
        read(r#"{"raw_handle":{"b64":"AA"},"byte_size":1}"#),
        Err((INTERNAL, "attempt to access non-existing object member 'device_id'")),
    );
    check(
        read(r#"{"raw_handle":{"b64":"AA"},"byte_size":1,"device_id":0}"#),
        Ok(CudaRegister { raw_handle: vec![0], device_id: 0, byte_size: 1 }),
    );
}

#[test]
fn an_index_request_may_be_empty() {
    let read = |text: &str| read_index(text.as_bytes());
    check(read(""), Ok(false));
    check(read("{}"), Ok(false));
    check(read(r#"{"ready":true}"#), Ok(true));
    check(read(r#"{"ready":"yes"}"#), Err((INVALID, "Invalid value for 'ready': expected a boolean")));
    check(
        read("{"),
        Err((INTERNAL, "failed to parse the request JSON buffer: Missing a name for object member. at 1")),
    );
}

#[test]
fn a_load_takes_a_configuration_and_files() {
    let read = |text: &str| {
        let options = read_load(text.as_bytes())?;
        let files = options.files.into_iter().map(|(path, content)| {
            let mut bytes = Vec::new();
            content.write_to(&mut bytes).map(|()| (path, bytes)).map_err(|error| Status::internal(error.to_string()))
        });
        Ok((options.config.unwrap_or_default(), files.collect::<Result<Vec<_>, Status>>()?))
    };
    check(read(""), Ok((String::new(), vec![])));
    check(read("{}"), Ok((String::new(), vec![])));
    check(
        read(r#"{"parameters":{"config":"{\"a\":1}","file:1/m.py":"Zm9v"}}"#),
        Ok((r#"{"a":1}"#.into(), vec![("1/m.py".into(), b"foo".to_vec())])),
    );
    check(read(r#"{"parameters":{"other":"x"}}"#), Err((INTERNAL, "unexpected error on creating Triton parameter")));
    check(read(r#"{"parameters":{"config":{}}}"#), Err((INTERNAL, "attempt to access JSON non-string as string")));
    check(read(r#"{"parameters":[]}"#), Err((INTERNAL, "attempt to get members for non-object")));
}

#[test]
fn any_value_but_true_counts_as_false_in_an_unload() {
    let read = |text: &str| read_unload(text.as_bytes());
    check(read(""), Ok(false));
    check(read(r#"{"parameters":{"unload_dependents":true}}"#), Ok(true));
    check(read(r#"{"parameters":{"unload_dependents":"true"}}"#), Ok(false));
    check(read(r#"{"parameters":null}"#), Ok(false));
}

#[test]
fn trace_settings_are_strings_levels_an_array_and_null_the_default() {
    let read = |text: &str| read_trace_change(text.as_bytes());
    let setting = |name: &str, values: &[&str]| {
        (name.to_string(), Some(values.iter().map(|value| (*value).to_string()).collect()))
    };
    check(read("{}"), Ok(vec![]));
    check(
        read(r#"{"trace_rate":"5","unknown":1,"trace_level":["TIMESTAMPS","TENSORS"],"trace_count":null}"#),
        Ok(vec![
            setting("trace_level", &["TIMESTAMPS", "TENSORS"]),
            setting("trace_rate", &["5"]),
            ("trace_count".into(), None),
        ]),
    );
    for file in ["null", "5", r#""/x""#] {
        check(read(&format!(r#"{{"trace_file":{file}}}"#)), Ok(vec![("trace_file".into(), None)]));
    }
    check(read(r#"{"trace_level":"OFF"}"#), Err((INTERNAL, "attempt to access JSON non-array as array")));
    check(read(r#"{"trace_rate":5}"#), Err((INTERNAL, "attempt to access JSON non-string as string")));
    check(read(""), Err((INTERNAL, "failed to parse the request JSON buffer: The document is empty. at 0")));
}

#[test]
fn log_settings_are_read_by_their_types() {
    let read = |text: &str| read_log_change(text.as_bytes());
    check(read(r#"{"log_info":null,"log_file":null}"#), Ok(LogChange::default()));
    check(read(r#"{"log_file":5}"#), Ok(LogChange { file: Some(String::new()), ..LogChange::default() }));
    let change =
        LogChange { info: Some(false), verbose_level: Some(2), format: Some("ISO8601".into()), ..LogChange::default() };
    check(read(r#"{"log_info":false,"log_verbose_level":2,"log_format":"ISO8601"}"#), Ok(change));
    check(
        read(r#"{"log_verbose_level":99999999999}"#),
        Err((
            Code::InvalidArg,
            "Unable to parse 'log_verbose_level', value is out of range [ 0, 4294967295 ], got: 99999999999",
        )),
    );
    check(read(r#"{"log_info":1}"#), Err((INTERNAL, "attempt to access JSON non-boolean as boolean")));
    check(
        read(r#"{"log_verbose_level":-1}"#),
        Err((INTERNAL, "attempt to access JSON non-unsigned-integer as unsigned-integer")),
    );
}

#[test]
fn a_member_of_the_wrong_type_is_named() {
    let added = |outcome: Status| outcome.message.rsplit_once("; ").map(|(_, added)| added.to_owned()).unwrap();
    let register = |text: &str| added(read_system_register(text.as_bytes()).unwrap_err());
    assert_eq!(register(r#"{"key":1,"byte_size":64}"#), "'key' must be a string");
    assert_eq!(register(r#"{"key":"/k","byte_size":-1}"#), "'byte_size' must be an integer of 0 or more");
    assert_eq!(register(r#"{"key":"/k","byte_size":1,"offset":"0"}"#), "'offset' must be an integer of 0 or more");
    let cuda = read_cuda_register(br#"{"raw_handle":{"b64":5}}"#).unwrap_err();
    assert_eq!(added(cuda), "'b64' must be a string");
    let load = read_load(br#"{"parameters":{"config":{}}}"#).unwrap_err();
    assert_eq!(added(load), "parameter 'config' must be a string");
    assert_eq!(added(read_load(br#"{"parameters":[]}"#).unwrap_err()), "'parameters' must be an object");
    let trace = |text: &str| added(read_trace_change(text.as_bytes()).unwrap_err());
    assert_eq!(trace(r#"{"trace_level":"OFF"}"#), "'trace_level' must be an array of strings");
    assert_eq!(trace(r#"{"trace_level":[5]}"#), "'trace_level' must be an array of strings");
    assert_eq!(trace(r#"{"trace_rate":5}"#), "'trace_rate' must be a string");
    let log = read_log_change(br#"{"log_info":1}"#).unwrap_err();
    assert_eq!(added(log), "'log_info' must be true or false");
}
