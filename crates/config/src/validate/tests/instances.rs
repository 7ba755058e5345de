//! Are settings refused that the host or the model's directory cannot satisfy?

use super::parsed;
use crate::proto::model_warmup::Input;
use crate::{
    ConfigError, Gpu, HostFacts, check_label_path, check_warmup_file, no_version_to_load, validate_groups,
    validate_states, validate_warmup, warmup_byte_size, warmup_failed,
};

#[track_caller]
fn check_groups(groups: &str, host: &HostFacts, expect: Result<(), &str>) {
    let config = parsed(&format!("name: 'm' platform: 'p' {groups}"));
    let found = validate_groups(&config, host).map_err(|refused| refused.to_string());
    assert_eq!(found.as_ref().map_err(String::as_str).copied(), expect, "{groups}");
}

#[test]
fn instances_are_counted_over_all_groups() {
    let gpu = |id| Gpu { id, compute_capability: 8.0 };
    let host = HostFacts { gpu_support: true, gpus: vec![gpu(0), gpu(1)], ..HostFacts::cpu_only() };
    let group = |count: i32| format!("instance_group {{ name: 'g{count}' kind: KIND_CPU count: {count} }}");
    let too_many = |instances: u64| {
        format!(
            "model m asks for {instances} instances in its instance groups, at most 1024 are possible; lower 'count'"
        )
    };
    check_groups(&group(1024), &host, Ok(()));
    check_groups(&group(1025), &host, Err(&too_many(1025)));
    check_groups(&group(i32::MAX), &host, Err(&too_many(i32::MAX as u64)));
    check_groups(&group(1000).repeat(2), &host, Err(&too_many(2000)));
    let both = "instance_group { name: 'g' kind: KIND_GPU gpus: [0, 1] count: 513 }";
    check_groups(both, &host, Err(&too_many(1026)));
    check_groups(
        &group(-5),
        &host,
        Err("instance group g-5 of model m has count -5, which is below 0; leave it out for the default"),
    );
    check_groups(&group(0), &host, Ok(()));
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
    let no_driver = HostFacts { no_support: "no CUDA driver; use KIND_CPU".to_owned(), ..none.clone() };
    check_groups(
        &on("GPU", "0"),
        &no_driver,
        Err(
            "instance group g of model m has kind KIND_GPU but server does not support GPUs: no CUDA driver; use KIND_CPU",
        ),
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
fn a_state_may_have_only_one_initial_value() {
    let state = "state { input_name: 's' initial_state { name: 'z' zero_data: true } }";
    let config = parsed(&format!("name: 'm' sequence_batching {{ {state} {state} }}"));
    assert_eq!(validate_states(&config).unwrap_err().to_string(), "State input name 's' specified more than once.");
}

#[test]
fn warmup_inputs_must_be_complete() {
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
fn label_files_must_be_in_the_models_directory() {
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
fn a_model_without_versions_is_refused() {
    assert_eq!(
        no_version_to_load("m").to_string(),
        "at least one version must be available under the version policy of model 'm'; a version is a directory such as 'm/1'"
    );
}
