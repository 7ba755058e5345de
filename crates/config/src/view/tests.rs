//! Are the groups and host policies of instances found?

#![allow(clippy::unwrap_used)]

use crate::parse_text;

#[track_caller]
fn check(groups: &str, instance: &str, device: Option<u32>, expected: &str) {
    let config = parse_text("", groups.as_bytes()).unwrap();
    assert_eq!(config.host_policy(instance, device), expected, "{groups}");
}

#[test]
fn the_host_policy_is_that_of_the_group_or_of_its_kind() {
    check("", "m_0", None, "cpu");
    check("instance_group { name: 'm' kind: KIND_CPU }", "m_1", None, "cpu");
    check("instance_group { name: 'm' kind: KIND_GPU gpus: 3 }", "m_0", Some(3), "gpu_3");
    check("instance_group { name: 'm' kind: KIND_MODEL }", "m_0", None, "model");
    check("instance_group { name: 'm' kind: KIND_GPU gpus: 3 host_policy: 'p' }", "m_0", Some(3), "p");
    let two = "instance_group [{ name: 'm' kind: KIND_CPU host_policy: 'p' }, { name: 'm_0' kind: KIND_CPU host_policy: 'q' }]";
    check(two, "m_0", None, "p");
    check(two, "m_0_0", None, "q");
    check(two, "n_0", None, "cpu");
}
