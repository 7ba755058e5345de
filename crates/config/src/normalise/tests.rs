//! Are defaults set as in Triton?

#![allow(clippy::unwrap_used)]

use super::*;
use crate::proto::ModelInstanceGroup;
use crate::proto::model_instance_group::Kind;
use crate::{Gpu, HostFacts, parse_text};

fn parsed(text: &str) -> ModelConfig {
    parse_text("p", text.as_bytes()).unwrap()
}

#[track_caller]
fn check(text: &str, expect: &str) {
    let once = normalise(parsed(text), "m");
    assert_eq!(once, parsed(expect), "{text}");
    assert_eq!(normalise(once.clone(), "m"), once, "a second time changes nothing");
}

const PINNED: &str = "optimization { input_pinned_memory { enable: true } \
                      output_pinned_memory { enable: true } }";

#[test]
fn name_versions_and_pinned_memory_are_filled() {
    check("", &format!("name: 'm' version_policy {{ latest {{ num_versions: 1 }} }} {PINNED}"));
    check("name: 'n' version_policy { all { } }", &format!("name: 'n' version_policy {{ all {{ }} }} {PINNED}"));
    check(
        "version_policy { all { } } optimization { input_pinned_memory { enable: false } }",
        "name: 'm' version_policy { all { } } optimization { input_pinned_memory { } \
         output_pinned_memory { enable: true } }",
    );
}

#[test]
fn batchers_prefer_the_largest_batch() {
    let all = format!("name: 'm' version_policy {{ all {{ }} }} {PINNED}");
    let check = |text: &str, expect: &str| {
        check(&format!("version_policy {{ all {{ }} }} {text}"), &format!("{all} {expect}"));
    };
    check("max_batch_size: 8 dynamic_batching { }", "max_batch_size: 8 dynamic_batching { preferred_batch_size: 8 }");
    check(
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: 2 }",
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: 2 }",
    );
    check("dynamic_batching { }", "dynamic_batching { }");
    check(
        "max_batch_size: 2 sequence_batching { oldest { } }",
        "max_batch_size: 2 sequence_batching { max_sequence_idle_microseconds: 1000000 \
         oldest { preferred_batch_size: 2 } }",
    );
    check(
        "max_batch_size: 2 sequence_batching { max_sequence_idle_microseconds: 5 direct { } }",
        "max_batch_size: 2 sequence_batching { max_sequence_idle_microseconds: 5 direct { } }",
    );
}

#[test]
fn an_ensemble_gets_no_optimization_but_a_transaction_policy() {
    check(
        "platform: 'ensemble' ensemble_scheduling { }",
        "name: 'm' platform: 'ensemble' version_policy { latest { num_versions: 1 } } \
         ensemble_scheduling { } model_transaction_policy { }",
    );
}

fn two_gpus() -> HostFacts {
    let gpu = |id, compute_capability| Gpu { id, compute_capability };
    let gpus = vec![gpu(1, 8.6), gpu(0, 9.0), gpu(2, 5.2)];
    HostFacts { gpu_support: true, gpus, ..HostFacts::cpu_only() }
}

fn preferred(kind: Kind, count: i32, gpus: &[i32]) -> ModelInstanceGroup {
    ModelInstanceGroup { kind: kind as i32, count, gpus: gpus.to_vec(), ..Default::default() }
}

/// `given` and `expect` are the instance groups of model `m` as text.
#[track_caller]
fn check_groups(given: &str, backend: &str, preferred: &[ModelInstanceGroup], host: &HostFacts, expect: &str) {
    let config = parsed(&format!("name: 'm' backend: '{backend}' {given}"));
    let found = normalise_groups(config, preferred, host).instance_group;
    assert_eq!(found, parsed(expect).instance_group, "{given} of {backend}");
}

#[test]
fn without_gpus_automatic_groups_run_on_the_cpu() {
    let host = HostFacts::cpu_only();
    let check = |given, backend, expect| check_groups(given, backend, &[], &host, expect);
    check("", "python", "instance_group { name: 'm' count: 1 kind: KIND_CPU }");
    check("", "onnxruntime", "instance_group { name: 'm' count: 2 kind: KIND_CPU }");
    check(
        "instance_group { count: 3 } instance_group { kind: KIND_CPU } instance_group { name: 'x' }",
        "identity",
        "instance_group { name: 'm_0' count: 3 kind: KIND_CPU } \
         instance_group { name: 'm_1' count: 1 kind: KIND_CPU } \
         instance_group { name: 'x' count: 1 kind: KIND_CPU }",
    );
    check("instance_group { kind: KIND_GPU }", "onnxruntime", "instance_group { name: 'm_0' count: 1 kind: KIND_GPU }");
    check(
        "instance_group { kind: KIND_MODEL }",
        "onnxruntime",
        "instance_group { name: 'm_0' count: 1 kind: KIND_MODEL }",
    );
}

#[test]
fn with_gpus_automatic_groups_run_on_all_usable_ones() {
    let host = two_gpus();
    let check = |given, expect| check_groups(given, "onnxruntime", &[], &host, expect);
    check("", "instance_group { name: 'm' count: 1 kind: KIND_GPU gpus: [0, 1] }");
    check(
        "instance_group { gpus: 1 } instance_group { gpus: [0, 2] }",
        "instance_group { name: 'm_0' count: 1 kind: KIND_GPU gpus: 1 } \
         instance_group { name: 'm_1' count: 2 kind: KIND_CPU gpus: [0, 2] }",
    );
}

#[test]
fn automatic_groups_run_on_the_cpu_if_gpus_must_be_named() {
    let host = HostFacts { auto_on_gpus: false, ..two_gpus() };
    let check = |given, expect| check_groups(given, "onnxruntime", &[], &host, expect);
    check("", "instance_group { name: 'm' count: 2 kind: KIND_CPU }");
    check(
        "instance_group { kind: KIND_GPU } instance_group { count: 1 }",
        "instance_group { name: 'm_0' count: 1 kind: KIND_GPU gpus: [0, 1] } \
         instance_group { name: 'm_1' count: 1 kind: KIND_CPU }",
    );
}

#[test]
fn the_backends_preferences_come_first() {
    let (cpu, gpus) = (HostFacts::cpu_only(), two_gpus());
    let preferences = [preferred(Kind::Gpu, 0, &[1, 7]), preferred(Kind::Cpu, 4, &[])];
    let check = |given, host, expect| check_groups(given, "x", &preferences, host, expect);
    check("", &cpu, "instance_group { name: 'm' count: 4 kind: KIND_CPU }");
    check("", &gpus, "instance_group { name: 'm' count: 1 kind: KIND_GPU gpus: 1 }");
    check(
        "instance_group { kind: KIND_GPU } instance_group { kind: KIND_CPU }",
        &gpus,
        "instance_group { name: 'm_0' count: 1 kind: KIND_GPU gpus: 1 } \
         instance_group { name: 'm_1' count: 4 kind: KIND_CPU }",
    );
    check(
        "instance_group { kind: KIND_CPU count: 2 }",
        &gpus,
        "instance_group { name: 'm_0' count: 2 kind: KIND_CPU }",
    );
}

#[test]
fn an_ensemble_gets_no_instances() {
    let host = HostFacts::cpu_only();
    check_groups("ensemble_scheduling { }", "", &[], &host, "");
}
