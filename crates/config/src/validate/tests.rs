//! Is every rule kept, in Triton's words?

#![allow(clippy::unwrap_used)]

use super::*;
use crate::proto::ModelInstanceGroup;
use crate::proto::model_warmup::Input;
use crate::{Gpu, HostFacts, normalise, parse_text};

fn parsed(text: &str) -> ModelConfig {
    parse_text("p", text.as_bytes()).unwrap_or_else(|refused| panic!("{refused}\nin {text}"))
}

/// Refused by `validate`, for a Python model `m` once normalised.
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
    check("backend: 'onnxruntime'", "unexpected 'platform' and 'backend' pair, got:, onnxruntime");
    passes("platform: 'whatever'");
}

#[test]
fn sizes_and_versions_must_be_said() {
    check("max_batch_size: -1", "'max_batch_size' must be non-negative value for m");
    let unversioned = parsed("name: 'm' backend: 'python'");
    assert_eq!(validate(&unversioned).unwrap_err().to_string(), "must specify 'version policy' for m");
    passes("max_batch_size: 0");
}

#[test]
fn preferred_sizes_must_be_possible_batches() {
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
fn an_order_to_preserve_excludes_what_would_change_it() {
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
fn sequence_controls_must_be_told_apart() {
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
fn sequence_strategies_must_be_possible() {
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
fn metrics_must_be_whole() {
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
}

/// An ensemble `m` from `i` to `o` with these steps and, before them, other fields.
fn ensemble(fields: &str, steps: &[(&str, &[&str], &[&str])]) -> ModelConfig {
    let maps = |field: &str, tensors: &[&str]| -> String {
        let entry = |(index, tensor): (usize, &&str)| format!("{field} {{ key: 'T{index}' value: '{tensor}' }} ");
        tensors.iter().enumerate().map(entry).collect()
    };
    let step = |(model, inputs, outputs): &(&str, &[&str], &[&str])| {
        format!("step {{ model_name: '{model}' {} {} }} ", maps("input_map", inputs), maps("output_map", outputs))
    };
    let steps: String = steps.iter().map(step).collect();
    normalise(
        parsed(&format!(
            "name: 'm' {fields} input {{ name: 'i' }} output {{ name: 'o' }} \
             ensemble_scheduling {{ {steps} }}"
        )),
        "m",
    )
}

const ENSEMBLE_ONLY: &str = "platform: 'ensemble'";

#[track_caller]
fn check_steps(steps: &[(&str, &[&str], &[&str])], expect: Result<(), &str>) {
    let found = validate(&ensemble(ENSEMBLE_ONLY, steps)).map_err(|refused| refused.to_string());
    assert_eq!(found.as_ref().map_err(String::as_str).copied(), expect);
}

#[test]
fn an_ensemble_has_steps_and_nothing_to_run_itself() {
    let check = |fields: &str, expect: &str| {
        let config = ensemble(fields, &[("a", &["i"], &["o"])]);
        assert_eq!(validate(&config).unwrap_err().to_string(), expect, "{fields}");
    };
    check("backend: 'python'", "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble");
    check("platform: 'ensemble' instance_group { }", "instance group should not be specified for ensemble 'm'");
    check("platform: 'ensemble' optimization { }", "optimization should not be specified for ensemble 'm'");
    check("platform: 'ensemble' model_warmup { }", "model_warmup can not be specified for ensemble 'm'");
    let schedule = normalise(parsed("name: 'm' platform: 'ensemble'"), "m");
    assert_eq!(
        validate(&schedule).unwrap_err().to_string(),
        "ensemble scheduling must be set for ensemble m whose platform is ensemble"
    );
    check_steps(&[], Err("must specify 'step' for ensemble 'm'"));
}

#[test]
fn each_step_must_be_whole() {
    check_steps(
        &[("a", &["i"], &["o"]), ("", &["i"], &["p"])],
        Err("must specify 'model_name' in step 1 of ensemble 'm'"),
    );
    check_steps(&[("a", &[], &["o"])], Err("must specify 'input_map' in step 0 of ensemble 'm'"));
    check_steps(&[("a", &["i"], &[])], Err("must specify 'output_map' in step 0 of ensemble 'm'"));
    check_steps(
        &[("a", &["i"], &["o"]), ("b", &["i"], &["o"])],
        Err("ensemble tensor 'o' can appear in an output map only once for ensemble 'm' step 1"),
    );
}

#[test]
fn data_must_flow_from_inputs_to_outputs() {
    check_steps(&[("a", &["i"], &["o"])], Ok(()));
    check_steps(&[("b", &["t"], &["o"]), ("a", &["i"], &["t"])], Ok(()));
    check_steps(&[("a", &["i"], &["t", "u"]), ("b", &["t", "u", "i"], &["o"])], Ok(()));
    check_steps(&[("a", &["x"], &["o"])], Err("ensemble input 'i' for ensemble m' is not used"));
    check_steps(&[("a", &["i"], &["x"])], Err("ensemble output 'o' for ensemble m' is not used"));
    check_steps(&[("a", &["i"], &["o", "x"])], Err("ensemble tensor 'x' is unused in ensemble 'm'"));
    check_steps(&[("a", &["i"], &["o"]), ("b", &["u"], &["v"])], Err("ensemble tensor 'u' is unused in ensemble 'm'"));
    check_steps(
        &[("a", &["i", "x"], &["o"])],
        Err("output 'o' for ensemble 'm' is not written: at least one of its depending tensors, \
             'x', is not connected"),
    );
    check_steps(
        &[("a", &["i", "u"], &["t"]), ("b", &["t"], &["u"]), ("c", &["u"], &["o"])],
        Err("output 'o' for ensemble 'm' is not written: at least one of its depending tensors, \
             't', is not connected"),
    );
    // The circle that is only itself names no other tensor.
    check_steps(&[("a", &["i", "o"], &["o"])], Err("output 'o' for ensemble 'm' is not written"));
}

/// Refused by `validate_tensors`, for a model `m` without batching but for `fields`.
#[track_caller]
fn check_tensors(fields: &str, expect: &str) {
    let config = parsed(&format!("name: 'm' {fields}"));
    assert_eq!(validate_tensors(&config).unwrap_err().to_string(), expect, "{fields}");
}

#[track_caller]
fn tensors_pass(fields: &str) {
    validate_tensors(&parsed(&format!("name: 'm' {fields}"))).unwrap();
}

#[test]
fn inputs_and_outputs_must_be_whole() {
    for way in ["input", "output"] {
        let check = |fields: &str, expect: &str| {
            check_tensors(&format!("{way} {{ {fields} }}"), &format!("model {way} {expect} for m"));
        };
        check("", "must specify 'name'");
        check("name: 'x'", "'x' must specify 'data_type'");
        check("name: 'x' data_type: TYPE_BOOL", "'x' must specify 'dims'");
        for dim in ["0", "-2"] {
            check(
                &format!("name: 'x' data_type: TYPE_BOOL dims: [1, {dim}]"),
                "'x' dimension must be integer >= 1, or -1 to indicate a variable-size dimension",
            );
        }
    }
    tensors_pass("input { name: 'x' data_type: TYPE_BOOL dims: [1, -1] }");
}

#[test]
fn a_reshape_must_keep_the_elements() {
    let tensor = |dims: &str, reshape: &str| {
        format!("output {{ name: 'x' data_type: TYPE_BOOL dims: {dims} reshape {{ {reshape} }} }}")
    };
    let check = |dims: &str, reshape: &str, expect: &str| {
        let fields = tensor(dims, &format!("shape: {reshape}"));
        check_tensors(&fields, &format!("model output 'x' {expect} for m"));
    };
    let sizes = "has different size for dims and reshape";
    check("4", "0", "reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension");
    check("4", "[2, 3]", sizes);
    check("4", "-1", sizes);
    check("-1", "4", sizes);
    check("[2, -1]", "[3, -1]", sizes);
    check("[-1, -1]", "-1", "has different number of variable-size dimensions for dims and reshape");
    check("[9223372036854775807, 2]", "1", "has an element count that exceeds 9223372036854775807");
    check_tensors(
        &tensor("1", ""),
        "model output 'x' cannot have empty reshape for non-batching model as scalar tensors are \
         not supported for m",
    );
    check_tensors(
        &format!("max_batch_size: 1 {}", tensor("2", "")),
        "model output 'x' has different size for dims and reshape for m",
    );
    tensors_pass(&format!("max_batch_size: 1 {}", tensor("[1, 1]", "")));
    tensors_pass(&tensor("[2, 4, -1, 6]", "shape: [8, -1, 1, 6]"));
    tensors_pass(&tensor("[4]", "shape: [2, 2]"));
}

#[test]
fn formats_must_be_possible() {
    let x = "name: 'x' data_type: TYPE_BOOL dims:";
    check_tensors(&format!("input {{ {x} 1 format: FORMAT_NHWC }}"), "model input NHWC/NCHW require 3 dims for m");
    tensors_pass(&format!("input {{ {x} [1, 2, 3] format: FORMAT_NCHW }}"));
    check_tensors(
        &format!("output {{ {x} 1 is_shape_tensor: true }}"),
        "shape tensors are only supported for TensorRT platform for m",
    );
    tensors_pass(&format!("platform: 'tensorrt_plan' input {{ {x} 1 is_shape_tensor: true }}"));
    check_tensors(
        &format!("input {{ {x} 1 is_non_linear_format_io: true }}"),
        "Non-linear IO format is only supported for the TensorRT platform for m",
    );
    check_tensors(
        &format!("platform: 'tensorrt_plan' output {{ {x} 1 is_non_linear_format_io: true }}"),
        "Non-linear IO format output requires 3 dims for m",
    );
}

#[test]
fn tensors_made_per_batch_must_name_others() {
    let check = |fields: &str, expect: &str| {
        let x = "name: 'x' data_type: TYPE_BOOL dims: 1";
        let fields = format!("input {{ {x} }} output {{ {x} }} {fields}");
        check_tensors(&fields, &format!("{expect} for m"));
    };
    check(
        "batch_input { kind: BATCH_ITEM_SHAPE }",
        "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0",
    );
    check(
        "batch_input { source_input: 'x' data_type: TYPE_INT64 }",
        "batch input data type must be TYPE_INT32 or TYPE_FP32",
    );
    check("batch_input { source_input: 'z' data_type: TYPE_INT32 }", "unknown source input name 'z'");
    check("batch_input { kind: 77 }", "unknown batch input kind '77'");
    check(
        "batch_output { source_input: ['x', 'x'] }",
        "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 2",
    );
    check("batch_output { source_input: 'z' }", "unknown source input name 'z'");
    check("batch_output { source_input: 'x' target_name: 'z' }", "unknown target output name 'z'");
    check(
        "batch_output { source_input: 'x' target_name: ['x', 'x'] }",
        "target output name 'x' can only be specified once",
    );
}

#[track_caller]
fn check_groups(groups: &str, host: &HostFacts, expect: Result<(), &str>) {
    let config = parsed(&format!("name: 'm' platform: 'p' {groups}"));
    let found = validate_groups(&config, host).map_err(|refused| refused.to_string());
    assert_eq!(found.as_ref().map_err(String::as_str).copied(), expect, "{groups}");
}

#[test]
fn instance_groups_must_fit_the_host() {
    let none = HostFacts::cpu_only();
    let driver = HostFacts { gpu_support: true, ..HostFacts::cpu_only() };
    let gpu = |id| Gpu { id, compute_capability: 8.0 };
    let two = HostFacts { gpus: vec![gpu(0), gpu(1)], ..driver.clone() };
    let on = |kind: &str, gpus: &str| format!("instance_group {{ name: 'g' kind: KIND_{kind} gpus: {gpus} }}");
    check_groups("", &none, Err("must specify one or more 'instance group's for m"));
    check_groups("ensemble_scheduling { }", &none, Ok(()));
    check_groups(
        &on("GPU", "[]"),
        &driver,
        Err("instance group g of model m has kind KIND_GPU but no GPUs are available"),
    );
    check_groups(
        &on("GPU", "0"),
        &none,
        Err("instance group g of model m has kind KIND_GPU but server does not support GPUs"),
    );
    check_groups(&on("GPU", "[]"), &two, Err("instance group g of model m has kind KIND_GPU but specifies no GPUs"));
    for kind in ["CPU", "MODEL"] {
        let refused = format!("instance group g of model m has kind KIND_{kind} but specifies one or more GPUs");
        check_groups(&on(kind, "0"), &two, Err(&refused));
        check_groups(&on(kind, "[]"), &none, Ok(()));
    }
    check_groups(
        &on("GPU", "[1, 7]"),
        &two,
        Err("instance group g of model m specifies invalid or unsupported gpu id 7. GPUs with at \
             least the minimum required CUDA compute compatibility of 6.000000 are: 0, 1"),
    );
    check_groups(&on("GPU", "[1]"), &two, Ok(()));
    check_groups(&on("AUTO", "[]"), &none, Err("instance group g of model m has unexpected kind KIND_AUTO"));
    check_groups(
        "instance_group { name: 'g' kind: KIND_CPU profile: '0' }",
        &none,
        Err("instance group g of model m and platform pspecifies profile field which is only \
             supported for TensorRT models"),
    );
}

#[test]
fn initial_states_must_fit_their_states() {
    let check = |state: &str, initial: &str, expect: Result<(), &str>| {
        let initial = if initial.is_empty() { String::new() } else { format!("initial_state {{ {initial} }}") };
        let text = format!(
            "name: 'm' sequence_batching {{ \
             state {{ input_name: 's' data_type: TYPE_FP32 dims: [2, -1] {state} {initial} }} }}"
        );
        let found = validate_states(&parsed(&text)).map_err(|refused| refused.to_string());
        assert_eq!(found.as_ref().map_err(String::as_str).copied(), expect, "{text}");
    };
    let whole = "name: 'z' data_type: TYPE_FP32 dims: [2, 3] zero_data: true";
    check("", "", Ok(()));
    check("", whole, Ok(()));
    check(
        &format!("initial_state {{ {whole} }}"),
        whole,
        Err("initial_state field for state input 's' must contain exactly one or zero element. \
             Found '2' elements."),
    );
    check(
        "",
        "name: 'z'",
        Err("The data type used for 'initial_state' field of state 's' does not match the state \
             data type."),
    );
    check("", "data_type: TYPE_FP32", Err("Field 'name' must be set when using initial_state for state input 's'."));
    let named = "name: 'z' data_type: TYPE_FP32 dims:";
    check(
        "",
        &format!("{named} 2"),
        Err("Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions \
             for state input 's'. 1 != 2"),
    );
    check(
        "",
        &format!("{named} [2, -1]"),
        Err("'initial_state' field for state input name 's' contains variable dimensions."),
    );
    check(
        "",
        &format!("{named} [3, 1]"),
        Err("'initial_state' dim for input name 's' doesn't match 'state' dim description. 3 != 2"),
    );
    check("", &format!("{named} [2, 1]"), Err("initial_state setting expects state's' to have state_data set"));
}

#[test]
fn a_state_may_have_one_beginning_only() {
    let state = "state { input_name: 's' initial_state { name: 'z' zero_data: true } }";
    let config = parsed(&format!("name: 'm' sequence_batching {{ {state} {state} }}"));
    assert_eq!(validate_states(&config).unwrap_err().to_string(), "State input name 's' specified more than once.");
}

#[test]
fn warmup_inputs_must_be_whole() {
    let check = |size: u32, input: &str, expect: Result<(), &str>| {
        let config =
            parsed(&format!("model_warmup {{ batch_size: {size} inputs {{ key: 'x' value {{ {input} }} }} }}"));
        let found = validate_warmup(&config).map_err(|refused| refused.to_string());
        assert_eq!(found.as_ref().map_err(String::as_str).copied(), expect, "{input}");
    };
    let open = "warmup setting expects all variable-size dimensions are specified for input 'x'";
    check(1, "data_type: TYPE_FP32 dims: [2, -1] zero_data: true", Err(open));
    check(1, "data_type: TYPE_FP32 dims: 2", Err("warmup setting expects input 'x' to have input_data_type set"));
    check(0, "dims: -1", Ok(()));
    check(1, "data_type: TYPE_FP32 dims: 2 random_data: true", Ok(()));
}

#[test]
fn a_warmup_file_must_be_long_enough() {
    let input = |fields: &str| -> Input {
        let text = format!("model_warmup {{ inputs {{ key: 'x' value {{ {fields} }} }} }}");
        parsed(&text).model_warmup[0].inputs["x"].clone()
    };
    let floats = input("data_type: TYPE_FP32 dims: [2, 3] input_data_file: 'f'");
    assert_eq!(warmup_byte_size("x", &floats).unwrap(), 24);
    check_warmup_file(&floats, 24, "f", 25).unwrap();
    assert_eq!(
        check_warmup_file(&floats, 24, "f", 23).unwrap_err().to_string(),
        "warmup setting expects 24 bytes, but the data provided from fonly has 23 bytes"
    );
    let strings = input("data_type: TYPE_STRING dims: 3");
    assert_eq!(warmup_byte_size("x", &strings).unwrap(), 12);
    check_warmup_file(&strings, 12, "f", 1).unwrap();
    assert_eq!(warmup_failed("sample", "boom").to_string(), "failed to run warmup sample 'sample': boom; ");
}

#[test]
fn resources_must_be_of_one_kind_and_within_their_limits() {
    let groups = |resources: &str| -> Vec<ModelInstanceGroup> {
        parsed(&format!("instance_group {{ rate_limiter {{ {resources} }} }}")).instance_group
    };
    let check = |groups: &[ModelInstanceGroup], limit: u32, expect: Result<(), &str>| {
        let limits = ResourceLimits::from([("r".to_owned(), limit)]);
        let found = check_resources(groups.iter(), &limits).map_err(|refused| refused.to_string());
        assert_eq!(found.as_ref().map_err(String::as_str).copied(), expect);
    };
    let needy = groups("resources { name: 'r' count: 4 } resources { name: 's' count: 9 }");
    check(&needy, 4, Ok(()));
    check(
        &needy,
        3,
        Err("Resource count for \"r\" is limited to 3 which will prevent scheduling of one or more \
             model instances, the minimum required count is 4"),
    );
    check(
        &groups("resources { name: 'r' count: 1 } resources { name: 'r' global: true }"),
        4,
        Err("Resource \"r\" is present as both global and device-specific resource in the model \
             configuration."),
    );
}

#[test]
fn label_files_lie_in_the_models_directory() {
    for path in ["labels.txt", "a/b.txt", "a/../b.txt", "./b.txt"] {
        check_label_path(path, "o", "m").unwrap();
    }
    for path in ["../labels.txt", "/etc/passwd", "a/../../b"] {
        let refused = check_label_path(path, "o", "m").unwrap_err();
        assert!(matches!(refused, ConfigError::Unsupported { .. }));
        assert_eq!(
            refused.to_string(),
            format!("label file path '{path}' for output 'o' in model 'm' is outside model directory")
        );
    }
}

#[test]
fn a_model_without_versions_is_told_so() {
    assert_eq!(
        no_version_to_load("m").to_string(),
        "at least one version must be available under the version policy of model 'm'"
    );
}
