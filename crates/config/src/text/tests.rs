//! Is every valid text read, and every fault reported?

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::from_json;

/// Checks that the text has the same meaning as the JSON.
#[track_caller]
fn check(text: &str, json: &str) {
    let read = parse_text("config.pbtxt", text.as_bytes());
    let read = read.unwrap_or_else(|refused| panic!("{refused}\nin {text}"));
    assert_eq!(read, from_json(json).unwrap(), "{text}");
}

/// Checks that the text is refused with this error. The part that names the file is omitted.
#[track_caller]
fn refuse(text: impl AsRef<[u8]>, expect: &str) {
    let refused = parse_text("m/config.pbtxt", text.as_ref()).unwrap_err().to_string();
    let reason = refused.strip_prefix("failed to read text proto from m/config.pbtxt: ").unwrap();
    assert_eq!(reason, expect);
}

#[test]
fn a_string_with_quotation_marks_inside_is_told_how_to_escape_them() {
    let cured = |text: &str| parse_text("p", text.as_bytes()).unwrap_err().to_string().contains(UNESCAPED);
    assert!(cured(r#"parameters { key: "k" value { string_value: "{"a": 1}" } }"#));
    assert!(cured(r#"name: "say "hi" now""#));
    assert!(!cured(r#"name: "x" nam: "y""#));
}

#[test]
fn a_pair_of_escapes_is_one_character() {
    check(r#"name: "\ud83d\ude00!""#, r#"{"name": "😀!"}"#);
    for broken in [r"\ud83d", r"\ude00\ud83d", r"\ud83dx", r"\ud83d\u0041"] {
        assert!(parse_text("p", format!("name: '{broken}'").as_bytes()).is_err(), "{broken}");
    }
}

#[test]
fn an_ordinary_file_is_read() {
    check(
        r#"
        # An image classifier.
        name: "resnet"
        platform: "onnxruntime_onnx"
        max_batch_size: 8
        input [
          {
            name: "data"
            data_type: TYPE_FP32
            format: FORMAT_NCHW
            dims: [ 3, 224, 224 ]
          }
        ]
        output { name: "prob" data_type: TYPE_FP32 dims: 1000 label_filename: "labels.txt" }
        dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
        parameters { key: "execution_mode" value: { string_value: "0" } }
        parameters: { key: "intra_op_thread_count" value { string_value: "2" } }
        instance_group [ { count: 2 kind: KIND_CPU } ]
        "#,
        r#"{
          "name": "resnet", "platform": "onnxruntime_onnx", "max_batch_size": 8,
          "input": [{"name": "data", "data_type": "TYPE_FP32", "format": "FORMAT_NCHW",
                     "dims": [3, 224, 224]}],
          "output": [{"name": "prob", "data_type": "TYPE_FP32", "dims": [1000],
                      "label_filename": "labels.txt"}],
          "dynamic_batching": {"preferred_batch_size": [4, 8],
                               "max_queue_delay_microseconds": 100},
          "parameters": {"execution_mode": {"string_value": "0"},
                         "intra_op_thread_count": {"string_value": "2"}},
          "instance_group": [{"count": 2, "kind": "KIND_CPU"}]
        }"#,
    );
}

#[test]
fn an_empty_file_is_an_empty_configuration() {
    check("", "{}");
    check("  # nothing but a comment", "{}");
    check("\u{feff}name: 'a'", r#"{"name": "a"}"#);
}

#[test]
fn messages_and_lists_may_have_every_form_that_protobuf_accepts() {
    check("dynamic_batching { }", r#"{"dynamic_batching": {}}"#);
    check("dynamic_batching: { }", r#"{"dynamic_batching": {}}"#);
    check("dynamic_batching < >", r#"{"dynamic_batching": {}}"#);
    let two = r#"{"input": [{"name": "a"}, {"name": "b"}]}"#;
    check("input [ { name: 'a' }, { name: 'b' } ]", two);
    check("input: [ { name: 'a' }, < name: 'b' > ]", two);
    check("input { name: 'a' } input { name: 'b' }", two);
    check("input { name: 'a' }, input { name: 'b' };", two);
    check("input [ { name: 'a' } ] input: { name: 'b' }", two);
    check("input [ ]", "{}");
    let dims = r#"{"input": [{"dims": [1, -1, 3]}]}"#;
    check("input { dims: [1,-1,3] }", dims);
    check("input { dims: 1 dims: -1 dims: 3 }", dims);
    check("input { dims: [1, -1]; dims: 3; }", dims);
    check("input { dims: [] }", r#"{"input": [{}]}"#);
    check("input{dims:[1,-1,3]}", dims);
}

#[test]
fn separators_may_follow_any_field() {
    let expect = r#"{"name": "a", "max_batch_size": 1, "backend": "b"}"#;
    check("name: 'a', max_batch_size: 1; backend: 'b',", expect);
    check("name:'a'max_batch_size:1 backend:'b'", expect);
}

#[test]
fn strings_may_be_quoted_divided_and_escaped() {
    check("name: 'a\"b'", r#"{"name": "a\"b"}"#);
    check("name: \"a\" 'b'\n\"c\"", r#"{"name": "abc"}"#);
    check(r#"name: "a\tb\\c\x41\101\u00e9\U0001F600""#, r#"{"name": "a\tb\\cAAé😀"}"#);
    check(r#"name: "\303\251""#, r#"{"name": "é"}"#);
    check("name: 'é'", r#"{"name": "é"}"#);
    check("name: '# no comment'", r##"{"name": "# no comment"}"##);
}

#[test]
fn numbers_may_be_written_in_every_base() {
    check("max_batch_size: 0x1F", r#"{"max_batch_size": 31}"#);
    check("max_batch_size: 010", r#"{"max_batch_size": 8}"#);
    check("max_batch_size: - 5", r#"{"max_batch_size": -5}"#);
    check("max_batch_size: -2147483648", r#"{"max_batch_size": -2147483648}"#);
    check(
        "dynamic_batching { max_queue_delay_microseconds: 18446744073709551615 }",
        r#"{"dynamic_batching": {"max_queue_delay_microseconds": 18446744073709551615}}"#,
    );
    check("input { dims: -9223372036854775808 }", r#"{"input": [{"dims": [-9223372036854775808]}]}"#);
}

#[test]
fn floats_may_be_written_in_every_form() {
    let slots = |text: &str, json: &str| {
        check(
            &format!("sequence_batching {{ direct {{ minimum_slot_utilization: {text} }} }}"),
            &format!(r#"{{"sequence_batching": {{"direct": {{"minimum_slot_utilization": {json}}}}}}}"#),
        );
    };
    for (text, json) in [
        ("0.5", "0.5"),
        (".5", "0.5"),
        ("5e-1", "0.5"),
        ("0.5f", "0.5"),
        ("1f", "1"),
        ("1.", "1"),
        ("1", "1"),
        ("-1.5", "-1.5"),
        ("inf", "\"Infinity\""),
        ("-Infinity", "\"-Infinity\""),
        ("1e400", "\"Infinity\""),
    ] {
        slots(text, json);
    }
    let text = "sequence_batching { direct { minimum_slot_utilization: NaN } }";
    let config = parse_text("p", text.as_bytes()).unwrap();
    assert!(crate::to_json(&config).contains(r#""minimum_slot_utilization":"NaN""#));
}

#[test]
fn booleans_and_enumerations_may_be_words_or_numbers() {
    for word in ["true", "True", "t", "1", "0x1"] {
        let text = format!("response_cache {{ enable: {word} }}");
        check(&text, r#"{"response_cache": {"enable": true}}"#);
    }
    for word in ["false", "False", "f", "0"] {
        let text = format!("response_cache {{ enable: {word} }}");
        check(&text, r#"{"response_cache": {"enable": false}}"#);
    }
    check("input { data_type: 11 }", r#"{"input": [{"data_type": "TYPE_FP32"}]}"#);
    check("input { data_type: 99 }", r#"{"input": [{"data_type": 99}]}"#);
}

#[test]
fn map_entries_may_leave_out_key_or_value() {
    check("metric_tags { key: 'a' value: 'b' }", r#"{"metric_tags": {"a": "b"}}"#);
    check("metric_tags [{ key: 'a' }, { value: 'b' }]", r#"{"metric_tags": {"a": "", "": "b"}}"#);
    check(
        "dynamic_batching { priority_queue_policy { key: 2 value { max_queue_size: 9 } } }",
        r#"{"dynamic_batching": {"priority_queue_policy": {"2": {"max_queue_size": 9}}}}"#,
    );
}

#[test]
fn a_comment_may_be_in_any_encoding() {
    let config = parse_text("p", b"# caf\xe9\nname: 'a'").unwrap();
    assert_eq!(config.name, "a");
}

#[test]
fn an_unknown_field_is_named_with_its_cure() {
    refuse(
        "name: 'a'\n  max_batchsize: 4",
        "line 2, column 3: ModelConfig has no field 'max_batchsize'; did you mean 'max_batch_size'?",
    );
    refuse(
        "input {\n  shape: [1]\n}",
        "line 2, column 3: ModelInput has no field 'shape'; it belongs inside 'reshape'",
    );
    refuse("colour: 1", "line 1, column 1: ModelConfig has no field 'colour'");
    refuse(
        "preferred_batch_size: 4",
        "line 1, column 1: ModelConfig has no field 'preferred_batch_size'; it belongs inside \
         'dynamic_batching'",
    );
}

#[test]
fn a_wrong_value_is_named_with_its_cure() {
    refuse(
        "name: resnet",
        "line 1, column 7: expected a string in quotes for 'name', found 'resnet'; write \"resnet\"",
    );
    refuse("name: 5", "line 1, column 7: expected a string in quotes for 'name', found '5'; put the value in quotes");
    refuse(
        "max_batch_size: \"4\"",
        "line 1, column 17: expected an integer for 'max_batch_size', found the string \"4\"; \
         write the number 4 without quotes",
    );
    refuse("max_batch_size: 4.5", "line 1, column 17: expected an integer for 'max_batch_size', found '4.5'");
    refuse(
        "max_batch_size: 2147483648",
        "line 1, column 17: 2147483648 for 'max_batch_size' is outside -2147483648 to 2147483647",
    );
    refuse("model_warmup { count: -1 }", "line 1, column 24: -1 for 'count' is outside 0 to 4294967295");
    refuse(
        "max_batch_size: [1]",
        "line 1, column 17: expected an integer for 'max_batch_size', found '['; this field \
         takes one value, not a list",
    );
    refuse(
        "response_cache { enable: TRUE }",
        "line 1, column 26: expected true or false for 'enable', found 'TRUE'; did you mean true?",
    );
    refuse("response_cache { enable: 2 }", "line 1, column 26: expected true or false for 'enable', found '2'");
    refuse("dynamic_batching: 1", "line 1, column 19: expected '{' for 'dynamic_batching', found '1'");
}

#[test]
fn a_wrong_datatype_is_named_with_its_cure() {
    for (word, cure) in [
        ("FP32", "TYPE_FP32"),
        ("TYPE_FLOAT", "TYPE_FP32"),
        ("TYPE_BYTES", "TYPE_STRING"),
        ("BYTES", "TYPE_STRING"),
        ("float16", "TYPE_FP16"),
        ("TYPE_INTT64", "TYPE_INT64"),
    ] {
        let reason = format!("line 1, column 20: DataType has no value '{word}'; did you mean {cure}?");
        refuse(format!("input {{ data_type: {word} }}"), &reason);
    }
    refuse(
        "input { data_type: \"TYPE_FP32\" }",
        "line 1, column 20: expected one of DataType's names for 'data_type', found the string \
         \"TYPE_FP32\"; write TYPE_FP32 without quotes",
    );
    refuse("instance_group { kind: GPU }", "line 1, column 24: Kind has no value 'GPU'; did you mean KIND_GPU?");
}

#[test]
fn broken_punctuation_is_named_with_its_cure() {
    refuse(
        "max_batch_size 4",
        "line 1, column 16: expected ':' after 'max_batch_size', found '4'; write \
         'max_batch_size: …'",
    );
    refuse("input {\n name: 'a'", "line 1, column 7: 'input' is not closed; add the missing '}'");
    refuse(
        "name: 'a' }",
        "line 1, column 11: expected the name of a field of ModelConfig, found '}'; there is a \
         '}' too many",
    );
    refuse(
        "{ name: 'a' }",
        "line 1, column 1: expected the name of a field of ModelConfig, found '{'; a \
         configuration is not enclosed in braces",
    );
    refuse(
        "\"name\": 'a'",
        "line 1, column 1: expected the name of a field of ModelConfig, found the string \
         \"name\"; field names are written without quotes",
    );
    refuse(
        "input { dims: [1, 2,] }",
        "line 1, column 21: expected an integer for 'dims', found ']'; remove the comma before ']'",
    );
    refuse(
        "input { dims: [1 2] }",
        "line 1, column 18: expected ',' or ']' in the list of 'dims', found '2'; values of a \
         list are parted by commas",
    );
    refuse(
        "input [ { name: 'a' }, ]",
        "line 1, column 24: expected '{' for 'input', found ']'; remove the comma before ']'",
    );
    refuse("name: 'a", "line 1, column 7: found a string that does not end on its line; close it with '");
    refuse("name:", "line 1, column 6: expected a string in quotes for 'name', found the end of the file");
    refuse(
        "max_batch_size: 4x",
        "line 1, column 18: found a number and a word run together; put a space or a comma \
         between them",
    );
    refuse("max_batch_size: 0x", "line 1, column 17: found a number that is not one");
    refuse("max_batch_size: 09", "line 1, column 17: found a number that is not one");
}

#[test]
fn a_second_value_is_refused_and_so_is_a_second_choice() {
    refuse("name: 'a'\nname: 'b'", "line 2, column 7: 'name' is given a second time; keep one of the two");
    refuse(
        "dynamic_batching { } sequence_batching { }",
        "line 1, column 40: 'sequence_batching' cannot stand beside 'dynamic_batching'; keep one \
         of the two",
    );
}

#[test]
fn invalid_bytes_are_refused_with_their_position() {
    refuse(
        b"name: 'caf\xe9'",
        "line 1, column 7: expected a string in quotes for 'name', found bytes that are not UTF-8",
    );
    refuse(b"name\x00", "line 1, column 5: found the control character 0x00");
    refuse(
        "name: 'é' ö",
        "line 1, column 11: found a character outside ASCII; such characters may stand only in \
         strings and comments",
    );
    refuse(
        r"name: '\q'",
        "line 1, column 8: found an escape that means nothing in a string; write '\\\\' for a \
         backslash",
    );
    refuse(
        r"name: '\ud800'",
        "line 1, column 8: found an escape that means nothing in a string; write '\\\\' for a \
         backslash",
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(text in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_text("p", &text);
    }

    #[test]
    fn words_in_any_order_never_panic(words in proptest::collection::vec(
        proptest::sample::select(vec![
            "name", "input", "dims", "data_type", "TYPE_FP32", "dynamic_batching", "parameters",
            "key", "value", "enable", "response_cache", ":", "{", "}", "[", "]", "<", ">", ",",
            ";", "-", "1", "0x", "1.5f", "'a'", "\"b\"", "'", "#\n", "true", "nan", "\\", "\n",
        ]), 0..40)
    ) {
        let _ = parse_text("p", words.join(" ").as_bytes());
        let _ = parse_text("p", words.concat().as_bytes());
    }
}
