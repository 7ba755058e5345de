//! Are request parameters read into the right fields?

use nerite_request::SequenceId;

use super::*;

#[test]
fn parameters_are_read_into_their_fields() {
    let (infer_request, _) = read(
        r#"{"id":"x","inputs":[],"parameters":{"sequence_id":5,"sequence_start":true,"sequence_end":false,"priority":2,
            "timeout":3,"s":"t","i":-4,"b":true,"d":0.5,"big":9223372036854775808,"i":9}}"#,
    )
    .unwrap();
    assert_eq!(
        (infer_request.model.as_str(), infer_request.version.as_str(), infer_request.id.as_str()),
        ("m", "1", "x")
    );
    assert_eq!((infer_request.priority, infer_request.timeout_us), (2, 3));
    assert_eq!(
        (infer_request.sequence.id.clone(), infer_request.sequence.start, infer_request.sequence.end),
        (SequenceId::Number(5), true, false)
    );
    let found: Vec<_> = infer_request.parameters.iter().map(|(key, value)| (key, value.clone())).collect();
    let wanted = [
        ("s", Parameter::String("t".into())),
        ("i", Parameter::Int(-4)),
        ("b", Parameter::Bool(true)),
        ("d", Parameter::Double(0.5)),
        ("big", Parameter::Double(2f64.powi(63))),
    ];
    assert_eq!(found, wanted);
    for (json, id) in [("0", SequenceId::None), ("\"\"", SequenceId::None), ("\"a\"", SequenceId::Text("a".into()))] {
        let (infer_request, _) = read(&format!(r#"{{"inputs":[],"parameters":{{"sequence_id":{json}}}}}"#)).unwrap();
        assert_eq!(infer_request.sequence.id, id);
    }
}

#[test]
fn the_timeout_is_read_alone() {
    for (json, expected) in [
        (r#"{"inputs":[{"data":[1,{"timeout":1}]}],"parameters":{"a":{"timeout":2},"timeout":3,"b":4},"c":5}"#, 3),
        (r#"{"timeout":1,"parameters":{}}"#, 0),
        (r#"{"parameters":{"timeout":"3"}}"#, 0),
        (r#"{"parameters":[{"timeout":3}]}"#, 0),
        (r#"{"parameters":{"timeout":3}"#, 0),
        ("[]", 0),
        ("", 0),
    ] {
        assert_eq!(read_timeout(json.as_bytes()), expected, "{json}");
    }
}

#[test]
fn parameters_of_the_wrong_type_are_refused_by_name() {
    let refuse_one = |member: &str, code, text: &str| {
        refuse(&format!(r#"{{"inputs":[],"parameters":{{{member}}}}}"#), code, text);
    };
    let unsigned = "attempt to access JSON non-unsigned-integer as unsigned-integer";
    refuse_one(r#""priority":-1"#, INTERNAL, &format!("Unable to parse 'priority': {unsigned}"));
    refuse_one(r#""timeout":"1""#, INTERNAL, &format!("Unable to parse 'timeout': {unsigned}"));
    let string = "Unable to parse 'sequence_id': attempt to access JSON non-string as string";
    refuse_one(r#""sequence_id":-1"#, INTERNAL, string);
    refuse_one(r#""sequence_id":null"#, INTERNAL, string);
    refuse_one(
        r#""sequence_start":1"#,
        INTERNAL,
        "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean",
    );
    let long = format!(r#""sequence_id":"{}""#, "x".repeat(129));
    refuse_one(&long, Code::Unsupported, "string correlation ID cannot be longer than 128 characters");
    let reserved = "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.";
    refuse_one(r#""triton_x":1"#, INVALID, reserved);
    for json in ["null", "[]", "{}"] {
        let text = "parameter 'k' has invalid type. It should be either 'int', 'bool', or 'string'.";
        refuse_one(&format!(r#""k":{json}"#), INVALID, text);
    }
    let many: Vec<String> = (0..5000).map(|n| format!(r#""p{n}":1"#)).collect();
    refuse_one(
        &many.join(","),
        INVALID,
        "a request has at most 4096 parameters, got 5000; send large data as an input",
    );
}
