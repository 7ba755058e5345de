//! Is every rule checked, with Triton's error text?

#![allow(clippy::unwrap_used)]

mod ensembles;
mod instances;
mod tensors;

use super::*;
use crate::{normalise, parse_text};

fn parsed(text: &str) -> ModelConfig {
    parse_text("p", text.as_bytes()).unwrap_or_else(|refused| panic!("{refused}\nin {text}"))
}

/// Checks that `validate` refuses the text, as a Python model `m` after normalisation.
#[track_caller]
fn check(text: &str, expect: &str) {
    let config = normalise(parsed(&format!("name: 'm' backend: 'python' {text}")), "m");
    assert_eq!(validate(&config).unwrap_err().to_string(), expect, "{text}");
}

#[track_caller]
fn passes(text: &str) {
    let config = normalise(parsed(&format!("name: 'm' backend: 'python' {text}")), "m");
    validate(&config).unwrap_or_else(|refused| panic!("{refused}\nin {text}"));
}

#[test]
fn a_repository_agent_is_not_skipped() {
    let refused = |text: &str| check_agents(&parsed(text), "m").err().map(|refused| refused.to_string());
    assert_eq!(refused(""), None);
    assert_eq!(refused("model_repository_agents { }"), None);
    let text = refused("model_repository_agents { agents [{ name: 'checksum' }, { name: 'other' }] }").unwrap();
    assert!(text.starts_with("model 'm' wants the repository agent 'checksum' in model_repository_agents;"), "{text}");
    // Triton refuses this as well.
    assert!(refused("model_repository_agents { agents { } }").is_some());
}

#[test]
fn name_and_directory_must_agree() {
    let config = parsed("name: 'a'");
    assert_eq!(
        check_directory_name(&config, "b").unwrap_err().to_string(),
        "unexpected directory name 'b' for model 'a', directory name must equal model name"
    );
    check_directory_name(&config, "a").unwrap();
    check_directory_name(&parsed(""), "b").unwrap();
    assert_eq!(validate(&parsed("")).unwrap_err().to_string(), "model configuration must specify 'name'");
}

#[test]
fn the_backend_must_be_known_and_fit_the_platform() {
    let check = |text: &str, expect: &str| {
        let config = normalise(parsed(text), "m");
        assert_eq!(validate(&config).unwrap_err().to_string(), expect, "{text}");
    };
    check("platform: 'x'", "unexpected platform type 'x' for m");
    check("", "unexpected platform type '' for m");
    check(
        "platform: 'ensemble' backend: 'python'",
        "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
    );
    check(
        "platform: 'tensorrt_plan' backend: 'onnxruntime'",
        "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime",
    );
    check(
        "platform: 'onnxruntime_onnx' backend: 'identity'",
        "unexpected 'platform' and 'backend' pair, got:onnxruntime_onnx, identity",
    );
    check("backend: 'onnxruntime'", "unexpected 'platform' and 'backend' pair, got:, onnxruntime");
    for platform in ["whatever", "pytorch_libtorch", "onnxruntime_onnx"] {
        passes(&format!("platform: '{platform}'"));
    }
}

#[test]
fn sizes_and_versions_must_be_set() {
    check("max_batch_size: -1", "'max_batch_size' must be non-negative value for m");
    let unversioned = parsed("name: 'm' backend: 'python'");
    assert_eq!(validate(&unversioned).unwrap_err().to_string(), "must specify 'version policy' for m");
    passes("max_batch_size: 0");
}

#[test]
fn preferred_sizes_must_be_valid_batch_sizes() {
    let check = |size: &str, expect: &str| {
        let text = "max_batch_size: 4 dynamic_batching { preferred_batch_size:";
        check(&format!("{text} {size} }}"), expect);
    };
    check("0", "dynamic batching preferred size must be positive for m");
    check("[4, -2]", "dynamic batching preferred size must be positive for m");
    check("[4, 5]", "dynamic batching preferred size must be <= max batch size for m");
    passes("max_batch_size: 4 dynamic_batching { preferred_batch_size: [1, 4] }");
    passes("dynamic_batching { }");
}

#[test]
fn priorities_must_be_within_their_levels() {
    let levels = "dynamic_batching { priority_levels: 2";
    let outside = "default priority level must be in range [1, 2] for m";
    check(&format!("{levels} }}"), outside);
    check(&format!("{levels} default_priority_level: 3 }}"), outside);
    let policy = |level: u64| format!("{levels} default_priority_level: 1 priority_queue_policy {{ key: {level} }} }}");
    let outside = "priority queue policy must have priority level in range [1, 2] for m";
    check(&policy(0), outside);
    check(&policy(3), outside);
    passes(&policy(2));
}

#[test]
fn preserved_order_excludes_settings_that_change_it() {
    let ordered = "dynamic_batching { preserve_ordering: true";
    check(
        &format!("{ordered} priority_levels: 2 default_priority_level: 1 }}"),
        "Only one priority level is allowed when 'preserve_ordering' is true for m",
    );
    let delay = "timeout_action: DELAY default_timeout_microseconds: 1";
    let refused = "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is \
                   true for m";
    check(&format!("{ordered} default_queue_policy {{ {delay} }} }}"), refused);
    check(
        &format!(
            "{ordered} priority_levels: 1 default_priority_level: 1 \
             priority_queue_policy {{ key: 1 value {{ {delay} }} }} }}"
        ),
        refused,
    );
    passes(&format!("{ordered} default_queue_policy {{ timeout_action: DELAY }} }}"));
    passes(&format!("{ordered} priority_levels: 1 default_priority_level: 1 }}"));
}

#[test]
fn a_cache_excludes_sequences_and_many_responses() {
    check(
        "response_cache { enable: true } sequence_batching { }",
        "Response Cache does not currently support model m with sequence batching scheduler. \
         Please disable the response cache.",
    );
    check(
        "response_cache { enable: true } model_transaction_policy { decoupled: true }",
        "Response Cache does not currently support model m with 'decoupled' transaction policy. \
         Please disable the response cache.",
    );
    passes("response_cache { enable: true }");
    passes("response_cache { enable: false } sequence_batching { }");
}

#[test]
fn sequence_controls_must_be_unambiguous() {
    let check = |text: &str, expect: &str| {
        check(&format!("sequence_batching {{ {text} }}"), expect);
    };
    let start = "control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] }";
    check("control_input { }", "sequence batching control tensor must have a name for m");
    check(
        "control_input { name: 'a' } control_input { name: 'a' }",
        "sequence batching control tensor 'a' is specified for multiple control kinds for m",
    );
    check(
        &format!("control_input {{ name: 'a' {start} }} control_input {{ name: 'b' {start} }}"),
        "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m",
    );
    let control = |kind: &str, values: &str| {
        format!("control_input {{ name: 'a' control {{ kind: CONTROL_SEQUENCE_{kind} {values} }} }}")
    };
    check(
        &control("READY", ""),
        "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or \
         'bool_false_true' for CONTROL_SEQUENCE_READY for m",
    );
    check(
        &control("END", "int32_false_true: [0, 1] bool_false_true: [false, true]"),
        "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and \
         'bool_false_true' for CONTROL_SEQUENCE_END for m",
    );
    for field in ["int32", "fp32", "bool"] {
        check(
            &control("START", &format!("{field}_false_true: 1")),
            &format!(
                "sequence batching control '{field}_false_true' must have exactly 2 entries for \
                 CONTROL_SEQUENCE_START for m"
            ),
        );
    }
    check(
        &control("CORRID", "fp32_false_true: [0, 1]"),
        "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or \
         'bool_false_true' for CONTROL_SEQUENCE_CORRID for m",
    );
    check(
        &control("CORRID", "data_type: TYPE_FP32"),
        "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are \
         TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
    );
    for data_type in ["TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING"] {
        let corrid = control("CORRID", &format!("data_type: {data_type}"));
        passes(&format!("sequence_batching {{ {corrid} }}"));
    }
    passes(&format!("sequence_batching {{ {} }}", control("START", "fp32_false_true: [0, 1]")));
}

#[test]
fn sequence_strategies_must_be_valid() {
    let check = |text: &str, expect: &str| {
        check(&format!("max_batch_size: 4 sequence_batching {{ {text} }}"), expect);
    };
    check("oldest { preferred_batch_size: 0 }", "sequence batching preferred batch size must be positive for m");
    check(
        "oldest { preferred_batch_size: 5 }",
        "sequence batching preferred batch size must be <= max batch size for m",
    );
    for slots in ["-0.1", "1.5", "nan"] {
        check(
            &format!("direct {{ minimum_slot_utilization: {slots} }}"),
            "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
        );
    }
    passes("sequence_batching { direct { minimum_slot_utilization: 0 } }");
    passes("sequence_batching { direct { minimum_slot_utilization: 1 } }");
}

#[test]
fn metrics_must_be_complete() {
    let check = |text: &str, expect: &str| {
        check(&format!("model_metrics {{ metric_control {{ {text} }} }}"), expect);
    };
    check("", "metric control must specify 'metric_identifier'");
    check("metric_identifier { }", "metric identifier must specify non-empty 'family'");
    let named = "metric_identifier { family: 'f' }";
    check(named, "metric control must specify 'histogram_options'");
    check(&format!("{named} histogram_options {{ }}"), "histogram options must specify non-empty 'buckets'");
    passes("model_metrics { }");
    passes(&format!("model_metrics {{ metric_control {{ {named} histogram_options {{ buckets: 1 }} }} }}"));
    let buckets = |list: &str| format!("{named} histogram_options {{ buckets: [{list}] }}");
    let many = |count: usize| (0..count).map(|bound| bound.to_string()).collect::<Vec<_>>().join(",");
    passes(&format!("model_metrics {{ metric_control {{ {} }} }}", buckets(&many(256))));
    check(
        &buckets(&many(257)),
        "histogram 'f' of model 'm' has 257 buckets, at most 256 are possible; list fewer in 'buckets'",
    );
    let behind = "histogram 'f' of model 'm' has a bucket of 2 behind one of 2; list each once, in ascending order";
    check(&buckets("1, 2, 2"), behind);
    for (bound, shown) in [("inf", "inf"), ("nan", "NaN")] {
        let cure = "list finite numbers in 'buckets', the bucket of all values is added";
        check(&buckets(bound), &format!("histogram 'f' of model 'm' has a bucket of {shown}; {cure}"));
    }
}

#[test]
fn tags_of_metrics_are_few_and_short_labels() {
    let tags = |count: usize| -> String {
        let tag = |at: usize| format!("metric_tags {{ key: 'k{at}' value: 'v' }} ");
        (0..count).map(tag).collect()
    };
    passes(&tags(64));
    check(&tags(65), "model 'm' has 65 metric_tags, at most 64 are possible; give it fewer");
    let long = |bytes: usize| format!("metric_tags {{ key: 'k' value: '{}' }}", "v".repeat(bytes - 1));
    passes(&long(2048));
    let refused =
        "the metric_tags of model 'm' have 2049 bytes, at most 2048 are possible; shorten their names and values";
    check(&long(2049), refused);
    passes("metric_tags { key: 'Team_1' value: '\"}\\n' }");
    check(
        "metric_tags { key: 'x=\"1\"} 1\\nnv_inference_count{y' value: 'v' }",
        "the metric_tags of model 'm' have the name 'x=\\\"1\\\"} 1\\nnv_inference_count{y', which Prometheus does not accept; use \
         letters, digits and '_'",
    );
}
