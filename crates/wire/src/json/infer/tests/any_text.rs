//! Does the reader survive any text, and does it read valid text correctly?

use proptest::prelude::*;

use super::*;
use crate::json::lex::Reader;

/// Texts made of JSON tokens, so that most of them are valid beyond the first byte.
fn jsonish() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::sample::select(vec![
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"",
            "\\",
            "\\u",
            "d800",
            "inputs",
            "\"inputs\":[{",
            "\"name\":\"I\",",
            "\"datatype\":\"INT32\",",
            "\"datatype\":\"BYTES\",",
            "\"shape\":[2],",
            "\"data\":[",
            "\"parameters\":{",
            "\"binary_data_size\":",
            "\"outputs\":[{",
            "null",
            "true",
            "NaN",
            "-Inf",
            "1",
            "-2",
            "3.5e",
            "99999999999999999999",
            " ",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..3),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

fn value() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::Value;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter_map("JSON has no NaN", |n| serde_json::Number::from_f64(n).map(Value::from)),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((any::<String>(), inner), 0..6).prop_map(|members| members.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in jsonish()) {
        let tail = Buffer::from(vec![0; 8]);
        let _ = read_infer(&InferText { json: &text, tail: &tail, model: "m", version: "", bytes_max: MAX, tensors_max: TensorsMax::default() });
    }

    #[test]
    fn any_valid_value_is_skipped_whole(value in value(), pretty: bool) {
        let text = if pretty { serde_json::to_vec_pretty(&value) } else { serde_json::to_vec(&value) }.unwrap();
        let mut reader = Reader::new(&text).unwrap();
        prop_assert_eq!(reader.skip(), Ok(()));
        prop_assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn strings_come_back_as_they_were(text: String) {
        let json = serde_json::to_vec(&text).unwrap();
        let read = Reader::new(&json).unwrap().string().map_err(|_| "refused");
        prop_assert_eq!(read, Ok(text));
    }

    #[test]
    fn integers_come_back_as_they_were(values in prop::collection::vec(any::<i64>(), 1..50)) {
        let json = json_input("INT64", &format!("[{}]", values.len()), &format!("{values:?}"));
        let (infer_request, _) = read(&json).unwrap();
        prop_assert_eq!(inline(&infer_request, 0), values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
    }

    #[test]
    fn doubles_come_back_bit_by_bit(bits in prop::collection::vec(any::<u64>(), 1..50)) {
        let values: Vec<f64> = bits.into_iter().map(f64::from_bits).filter(|value| value.is_finite()).collect();
        prop_assume!(!values.is_empty());
        let mut text = Vec::new();
        for value in &values {
            text.push(if text.is_empty() { b'[' } else { b',' });
            crate::json::number::push_double(&mut text, *value);
        }
        text.push(b']');
        let json = json_input("FP64", &format!("[{}]", values.len()), std::str::from_utf8(&text).unwrap());
        let (infer_request, _) = read(&json).unwrap();
        prop_assert_eq!(inline(&infer_request, 0), values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
    }
}
