//! Is the JSON what clients of the config endpoint expect, and can it be read back?

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::proto::model_config::SchedulingChoice;
use crate::proto::{self, model_metrics, model_sequence_batching as seq, model_warmup};
use crate::{HostFacts, normalise, normalise_groups, parse_text};

/// Checks the JSON of the config endpoint for this text, normalised for a host without GPUs.
#[track_caller]
fn check(text: &str, expect: &str) {
    let config = normalise(parse_text("p", text.as_bytes()).unwrap(), "m");
    let config = normalise_groups(config, &[], &HostFacts::cpu_only());
    let json = to_json(&config);
    assert_eq!(json, expect.replace('\n', "").replace("  ", ""));
    assert_eq!(from_json(&json).unwrap(), config, "read back");
}

#[track_caller]
fn reads(json: &str, expect: &str) {
    assert_eq!(from_json(json).unwrap(), parse_text("p", expect.as_bytes()).unwrap(), "{json}");
}

#[track_caller]
fn refuse(json: &str, expect: &str) {
    let refused = from_json(json).unwrap_err().to_string();
    assert_eq!(refused.strip_prefix("Invalid config override: ").unwrap(), expect);
}

#[test]
fn the_lax_syntax_of_protobufs_reader_is_read() {
    let expect = "name: 'm' max_batch_size: 8 input { name: 'say \\\"a\\\"' dims: [1, 2] }";
    reads("{'name': 'm', 'max_batch_size': 8, 'input': [{'name': 'say \"a\"', 'dims': [1, 2]}]}", expect);
    reads("{name: \"m\", max_batch_size : 8, input: [{name: 'say \\\"a\\\"', dims: [1, 2,], },],}", expect);
    reads("{name: 'it\\'s', maxBatchSize: 1e0}", "name: 'it\\'s' max_batch_size: 1");
    reads("{'name': ', }', 'response_cache': {enable: true}}", "name: ', }' response_cache { enable: true }");
    reads("{'name': 'a\nb\\x41\\v', 'max_batch_size': 8.}", "name: 'a\\nbx41\\v' max_batch_size: 8");
    reads("{max_batch_size: 1.e1}", "max_batch_size: 10");
    let decoupled = |value: &str| format!("{{'name': '', 'model_transaction_policy': {{'decoupled': '{value}'}}}}");
    for (value, expect) in [("1", true), ("YES", true), ("t", true), ("0", false), ("No", false), ("false", false)] {
        reads(&decoupled(value), &format!("model_transaction_policy {{ decoupled: {expect} }}"));
    }
    for broken in
        [&decoupled("on"), "{name: m}", "{,}", "{'name': 'm'", "{'input': [,]}", "{'input': [{},,]}", "'", "{name 'm'}"]
    {
        assert!(from_json(broken).is_err(), "{broken}");
    }
}

#[test]
fn every_scalar_and_list_is_shown_and_unset_messages_are_not() {
    check(
        r#"backend: "python" input { name: "x" data_type: TYPE_STRING dims: -1 }
           instance_group {} parameters { key: "k" value { string_value: "\001\"é/" } }"#,
        r#"{"name":"m","platform":"","backend":"python","runtime":"",
        "version_policy":{"latest":{"num_versions":1}},"max_batch_size":0,
        "input":[{"name":"x","data_type":"TYPE_STRING","format":"FORMAT_NONE","dims":[-1],
        "is_shape_tensor":false,"allow_ragged_batch":false,"optional":false,
        "is_non_linear_format_io":false}],"output":[],"batch_input":[],"batch_output":[],
        "optimization":{"priority":"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},
        "output_pinned_memory":{"enable":true},"gather_kernel_buffer_threshold":0,
        "eager_batching":false},
        "instance_group":[{"name":"m_0","kind":"KIND_CPU","count":1,"gpus":[],
        "secondary_devices":[],"profile":[],"passive":false,"host_policy":""}],
        "default_model_filename":"","cc_model_filenames":{},"metric_tags":{},
        "parameters":{"k":{"string_value":"\u0001\"é/"}},"model_warmup":[]}"#,
    );
}

#[test]
fn the_scheduler_is_at_the_schemas_place_with_numbers_as_numbers() {
    check(
        r#"name: "m" backend: "onnxruntime" platform: "onnxruntime_onnx" max_batch_size: 4
           dynamic_batching {
             max_queue_delay_microseconds: 18446744073709551615
             priority_levels: 12 default_priority_level: 1
             priority_queue_policy { key: 10 value { max_queue_size: 1 } }
             priority_queue_policy { key: 9 value { timeout_action: DELAY } }
           }
           model_transaction_policy {} response_cache { enable: false }"#,
        r#"{"name":"m","platform":"onnxruntime_onnx","backend":"onnxruntime","runtime":"",
        "version_policy":{"latest":{"num_versions":1}},"max_batch_size":4,"input":[],"output":[],
        "batch_input":[],"batch_output":[],
        "optimization":{"priority":"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},
        "output_pinned_memory":{"enable":true},"gather_kernel_buffer_threshold":0,
        "eager_batching":false},
        "dynamic_batching":{"preferred_batch_size":[4],
        "max_queue_delay_microseconds":18446744073709551615,"preserve_ordering":false,
        "priority_levels":12,"default_priority_level":1,"priority_queue_policy":{
        "9":{"timeout_action":"DELAY","default_timeout_microseconds":0,
        "allow_timeout_override":false,"max_queue_size":0},
        "10":{"timeout_action":"REJECT","default_timeout_microseconds":0,
        "allow_timeout_override":false,"max_queue_size":1}}},
        "instance_group":[{"name":"m","kind":"KIND_CPU","count":2,"gpus":[],
        "secondary_devices":[],"profile":[],"passive":false,"host_policy":""}],
        "default_model_filename":"","cc_model_filenames":{},"metric_tags":{},"parameters":{},
        "model_warmup":[],"model_transaction_policy":{"decoupled":false},
        "response_cache":{"enable":false}}"#,
    );
}

#[test]
fn an_ensemble_shows_its_transaction_policy_and_no_instances() {
    check(
        r#"platform: "ensemble" ensemble_scheduling { step {
             model_name: "a" model_version: -1
             input_map { key: "I" value: "x" } output_map { key: "O" value: "y" } } }"#,
        r#"{"name":"m","platform":"ensemble","backend":"","runtime":"",
        "version_policy":{"latest":{"num_versions":1}},"max_batch_size":0,"input":[],"output":[],
        "batch_input":[],"batch_output":[],
        "ensemble_scheduling":{"step":[{"model_name":"a","model_version":-1,
        "input_map":{"I":"x"},"output_map":{"O":"y"},"model_namespace":""}],
        "max_inflight_requests":0},"instance_group":[],
        "default_model_filename":"","cc_model_filenames":{},"metric_tags":{},"parameters":{},
        "model_warmup":[],"model_transaction_policy":{"decoupled":false}}"#,
    );
}

#[test]
fn floats_have_their_shortest_form() {
    let json = |text: &str| {
        let text = format!("model_metrics {{ metric_control {{ histogram_options {{ buckets: [{text}] }} }} }}");
        let json = to_json(&parse_text("p", text.as_bytes()).unwrap());
        json.split_once("\"buckets\":").unwrap().1.split_once('}').unwrap().0.to_owned()
    };
    assert_eq!(json("0.1, 100, 2.50, -0.5, inf"), r#"[0.1,100,2.5,-0.5,"Infinity"]"#);
    assert_eq!(json("1e30, 1e-9, 1e20"), "[1e30,1e-9,100000000000000000000]");
    let text = "sequence_batching { direct { minimum_slot_utilization: 0.1 } }";
    let json = to_json(&parse_text("p", text.as_bytes()).unwrap());
    assert!(json.contains(r#""minimum_slot_utilization":0.1}"#), "{json}");
}

#[test]
fn a_choice_with_its_default_value_is_shown() {
    let text = "model_warmup { inputs { key: 'x' value { zero_data: false } } }";
    let json = to_json(&parse_text("p", text.as_bytes()).unwrap());
    let expect = r#""inputs":{"x":{"data_type":"TYPE_INVALID","dims":[],"zero_data":false}}"#;
    assert!(json.contains(expect), "{json}");
}

#[test]
fn a_chosen_scalar_is_shown_last_as_triton_does() {
    let text = "sequence_batching { state { initial_state { zero_data: true name: 'z' } } }";
    let json = to_json(&parse_text("p", text.as_bytes()).unwrap());
    let expect = r#"[{"data_type":"TYPE_INVALID","dims":[],"name":"z","zero_data":true}]"#;
    assert!(json.contains(expect), "{json}");
}

#[test]
fn an_override_may_have_every_form_that_protobuf_accepts() {
    reads("{}", "");
    reads(r#"{"maxBatchSize": 4}"#, "max_batch_size: 4");
    reads(r#"{"max_batch_size": "4"}"#, "max_batch_size: 4");
    reads(r#"{"max_batch_size": 4.0}"#, "max_batch_size: 4");
    reads(r#"{"max_batch_size": 1e1}"#, "max_batch_size: 10");
    reads(r#"{"max_batch_size": null, "input": null}"#, "");
    reads(r#"{"input": [{"data_type": "type_fp32"}]}"#, "input { data_type: TYPE_FP32 }");
    reads(r#"{"input": [{"dataType": 11, "dims": ["1", -1]}]}"#, "input { data_type: 11 dims: [1, -1] }");
    reads(r#"{"dynamic_batching": {}}"#, "dynamic_batching { }");
    reads(
        r#"{"dynamic_batching": {"priority_queue_policy": {"2": {}}}}"#,
        "dynamic_batching { priority_queue_policy { key: 2 } }",
    );
    reads(r#"{"dynamic_batching": {}, "sequence_batching": null}"#, "dynamic_batching { }");
    reads(r#"{"input": {"name": "x", "dims": 1}}"#, "input { name: 'x' dims: 1 }");
    reads(r#"{"input": [null, {}, null]}"#, "input { }");
    reads(r#"{"input": [{"data_type": "11"}]}"#, "input { data_type: 11 }");
    reads(r#"{"response_cache": {"enable": "true"}}"#, "response_cache { enable: true }");
    reads(r#"{"metric_tags": {"k": null}}"#, "metric_tags { key: 'k' }");
}

#[test]
fn a_bad_override_is_refused_with_the_path_to_the_fault() {
    refuse("", "EOF while parsing a value at line 1 column 0");
    refuse("[]", "the configuration: expected an object, found an array");
    refuse(r#"{"max_batch": 1}"#, "ModelConfig has no field 'max_batch'");
    refuse(r#"{"max_batchsize": 1}"#, "ModelConfig has no field 'max_batchsize'; did you mean 'max_batch_size'?");
    refuse(r#"{"input": [{}, {"dim": [1]}]}"#, "input[1]: ModelInput has no field 'dim'; did you mean 'dims'?");
    refuse(r#"{"input": 1}"#, "input[0]: expected an object, found 1");
    refuse(
        r#"{"sequence_batching": {"direct": {"minimum_slot_utilization": 1e40}}}"#,
        "sequence_batching.direct.minimum_slot_utilization: \
         10000000000000000000000000000000000000000 is out of range",
    );
    refuse(r#"{"response_cache": {"enable": 1}}"#, "response_cache.enable: expected true or false, found 1");
    refuse(r#"{"input": [{"dims": [1, "x"]}]}"#, "input[0].dims[1]: expected an integer, found the string \"x\"");
    refuse(r#"{"max_batch_size": 4.5}"#, "max_batch_size: expected an integer, found 4.5");
    refuse(r#"{"max_batch_size": 1e10}"#, "max_batch_size: 10000000000 is out of range");
    refuse(
        r#"{"input": [{"data_type": "FP32"}]}"#,
        "input[0].data_type: DataType has no value 'FP32'; did you mean TYPE_FP32?",
    );
    refuse(r#"{"parameters": {"k": "v"}}"#, "parameters[\"k\"]: expected an object, found the string \"v\"");
    refuse(
        r#"{"dynamic_batching": {"priority_queue_policy": {"x": {}}}}"#,
        "dynamic_batching.priority_queue_policy[\"x\"]: the key is not a number",
    );
    refuse(
        r#"{"dynamic_batching": {}, "sequence_batching": {}}"#,
        "sequence_batching: cannot stand beside 'dynamic_batching'",
    );
    refuse(r#"{"name": "a"} x"#, "trailing characters at line 1 column 15");
}

/// Messages with all kinds of fields in the schema, with arbitrary numbers and words.
fn configs() -> impl Strategy<Value = ModelConfig> {
    let words = proptest::collection::vec(".{0,8}", 4);
    let numbers = proptest::collection::vec(any::<i64>(), 4);
    let choice = (0..4_u8, any::<bool>());
    (words, numbers, choice).prop_map(|(words, numbers, (choice, flag))| ModelConfig {
        scheduling_choice: scheduler(&words, &numbers, choice, flag),
        ..config(&words, &numbers, flag)
    })
}

fn scheduler(words: &[String], numbers: &[i64], choice: u8, flag: bool) -> Option<SchedulingChoice> {
    // A number with few digits, which every JSON reader reads exactly.
    let real = numbers[0] as i16 as f32 / 100.0;
    match choice {
        0 => None,
        1 => Some(SchedulingChoice::DynamicBatching(proto::ModelDynamicBatching {
            preferred_batch_size: numbers.iter().map(|&n| n as i32).collect(),
            max_queue_delay_microseconds: numbers[0] as u64,
            priority_queue_policy: [(numbers[1] as u64, proto::ModelQueuePolicy::default())].into(),
            ..Default::default()
        })),
        2 => Some(SchedulingChoice::SequenceBatching(proto::ModelSequenceBatching {
            control_input: vec![seq::ControlInput {
                name: words[0].clone(),
                control: vec![seq::Control { fp32_false_true: vec![real, 1.0], ..Default::default() }],
            }],
            strategy_choice: flag.then(|| {
                seq::StrategyChoice::Direct(seq::StrategyDirect {
                    minimum_slot_utilization: real,
                    ..Default::default()
                })
            }),
            ..Default::default()
        })),
        _ => Some(SchedulingChoice::EnsembleScheduling(proto::ModelEnsembling::default())),
    }
}

fn config(words: &[String], numbers: &[i64], flag: bool) -> ModelConfig {
    let buckets = vec![numbers[3] as i32 as f64 / 1000.0, 0.5];
    let buckets = model_metrics::metric_control::HistogramOptions { buckets };
    ModelConfig {
        name: words[0].clone(),
        max_batch_size: numbers[0] as i32,
        input: vec![proto::ModelInput {
            name: words[1].clone(),
            data_type: (numbers[2] % 20) as i32,
            dims: numbers.to_vec(),
            reshape: flag.then(proto::ModelTensorReshape::default),
            ..Default::default()
        }],
        metric_tags: [(words[2].clone(), words[3].clone())].into(),
        model_warmup: vec![proto::ModelWarmup {
            inputs: [(
                words[1].clone(),
                model_warmup::Input {
                    input_data_type: Some(model_warmup::input::InputDataType::ZeroData(flag)),
                    ..Default::default()
                },
            )]
            .into(),
            ..Default::default()
        }],
        model_metrics: Some(proto::ModelMetrics {
            metric_control: vec![model_metrics::MetricControl {
                metric_options: Some(model_metrics::metric_control::MetricOptions::HistogramOptions(buckets)),
                ..Default::default()
            }],
        }),
        ..Default::default()
    }
}

proptest! {
    #[test]
    fn written_json_is_valid_and_is_read_back(config in configs()) {
        let json = to_json(&config);
        prop_assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
        prop_assert_eq!(from_json(&json).unwrap(), config);
    }

    #[test]
    fn arbitrary_text_never_panics(json in ".{0,80}") {
        let _ = from_json(&json);
    }
}
