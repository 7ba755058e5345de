//! Which instances of a model run at the same time?
#![allow(clippy::unwrap_used)]

#[path = "support/requests.rs"]
mod requests;
#[path = "support/sample.rs"]
mod sample;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use nerite_backend::conformance::context;
use nerite_backend::{CostBound, Instance, Meter, ModelVersion, NoMeter, Runtime};
use nerite_config::proto::model_instance_group::Kind;
use nerite_request::{AdmittedRequest, Cancel, Code, Parameter, Reply, Response};

use requests::{batch, instance, request};
use sample::{backend, config, floats};

/// How long an execution takes. Two that may run at the same time do.
const EXECUTION_MS: u64 = 300;
/// Longer than any step of these tests takes.
const NEVER: Duration = Duration::from_mins(1);

/// Runs one request, which says how many executions of the model there were at a time, at most.
fn infer(instance: &mut dyn Instance) -> i64 {
    let Response::Final(answer) = answer(instance, Cancel::new()) else { panic!("an answer") };
    let Some(Parameter::Int(most)) = answer.parameters.get("most") else { panic!("{:?}", answer.parameters) };
    *most
}

/// Runs one request.
fn answer(instance: &mut dyn Instance, cancel: Cancel) -> Response {
    let (answered, answer) = channel();
    let inputs = vec![floats("IN", &[1.0]), floats("IN1", &[2.0])];
    let reply = Reply::new(move |response| answered.send(response).unwrap_or_default());
    let request = AdmittedRequest { cancel, ..request(inputs, ["OUT"], reply) };
    let meter: Arc<dyn Meter> = Arc::new(NoMeter);
    instance.run(batch(request, &ModelVersion::unmetered("m"), &meter));
    answer.recv_timeout(NEVER).unwrap()
}

/// Runs an instance on each of these devices at the same time. `policy` is 0 or 1.
#[track_caller]
fn check(policy: &str, devices: [Option<u32>; 2], expected: i64) {
    let instances = instances(policy, devices);
    let most = std::thread::scope(|scope| {
        let running: Vec<_> = instances.into_iter().map(|mut one| scope.spawn(move || infer(&mut *one))).collect();
        running.into_iter().map(|one| one.join().unwrap()).max()
    });
    assert_eq!(most, Some(expected), "policy {policy}, instances on {devices:?}");
}

/// Instances of one model.
fn instances(policy: &str, devices: [Option<u32>; 2]) -> [Box<dyn Instance>; 2] {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let parameters = format!(
        "parameters {{ key: 'mode' value {{ string_value: 'crowd' }} }} \
         parameters {{ key: 'delay_ms' value {{ string_value: '{EXECUTION_MS}' }} }}"
    );
    let mut context = context(folder.path(), config(&parameters));
    context.settings.insert("policy".to_owned(), policy.to_owned());
    let model = backend.load(&context).unwrap();
    let [first, second] = devices;
    [(0, first), (1, second)].map(|(index, device)| instance(&*model, index, device).unwrap())
}

#[test]
fn by_the_usual_policy_each_instance_runs_beside_the_others() {
    check("0", [Some(0), Some(0)], 2);
    check("0", [None, None], 2);
}

#[test]
fn by_the_policy_of_devices_one_instance_of_a_gpu_runs_at_a_time() {
    check("1", [Some(0), Some(0)], 1);
    check("1", [Some(0), Some(1)], 2);
    // As in Triton 2.51, instances on the host have a thread each.
    check("1", [None, None], 2);
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "one instance runs, and the other one waits, before the request is cancelled"
)]
fn a_request_that_is_cancelled_while_its_instance_waits_for_its_turn_does_not_run() {
    let [mut first, mut second] = instances("1", [Some(0), Some(0)]);
    let cancel = Cancel::new();
    std::thread::scope(|scope| {
        scope.spawn(|| infer(&mut *first));
        std::thread::sleep(Duration::from_millis(EXECUTION_MS / 3));
        let running = scope.spawn(|| answer(&mut *second, cancel.clone()));
        std::thread::sleep(Duration::from_millis(EXECUTION_MS / 3));
        cancel.cancel();
        let answer = running.join().unwrap();
        let Response::Failed { error: status, .. } = answer else { panic!("it ran") };
        assert_eq!(status.code, Code::Cancelled);
    });
}

#[test]
fn instances_that_wait_for_each_other_never_run_on_a_thread_that_serves_connections() {
    let bounded = "parameters { key: 'nerite.cost_bound' value { string_value: 'input_sizes' } }";
    for (policy, expected) in [("0", CostBound::InputSizes), ("1", CostBound::Unknown)] {
        let folder = tempfile::tempdir().unwrap();
        let mut context = context(folder.path(), config(bounded));
        context.settings.insert("policy".to_owned(), policy.to_owned());
        assert_eq!(backend(folder.path()).load(&context).unwrap().cost_bound(), expected);
    }
}

#[test]
fn the_instance_groups_that_a_backend_prefers_are_reported_in_its_order() {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let mut context = context(folder.path(), config(""));
    assert_eq!(backend.preferred_groups(&context).unwrap(), []);
    backend.give_up(&context);
    context.settings.insert("prefer".to_owned(), "3".to_owned());
    let groups = backend.preferred_groups(&context).unwrap();
    let groups: Vec<_> = groups.iter().map(|group| (group.kind(), group.count, group.gpus.len())).collect();
    assert_eq!(groups, [(Kind::Gpu, 7, 0), (Kind::Cpu, 3, 0)]);
    // It is initialised once for both: it refuses a second time.
    drop(backend.load(&context).unwrap());
}
