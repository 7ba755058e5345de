//! Does a compiled backend end only when nothing of it is in use any more?
#![allow(clippy::unwrap_used)]

#[path = "support/sample.rs"]
mod sample;

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use nerite_backend::conformance::context;
use nerite_backend::{Batch, Instance, InstanceSpec, Job, ModelVersion, NoMeter, Runtime};
use nerite_cabi::CompiledBackend;
use nerite_request::{AdmittedRequest, Cancel, Name, Parameters, Reply, Response, Sequence, Wanted};

use sample::{backend, config, floats};

/// Longer than anything here takes.
const NEVER: Duration = Duration::from_mins(1);

fn instance(backend: &CompiledBackend, folder: &Path, parameters: &str) -> Box<dyn Instance> {
    let model = backend.load(&context(folder, config(parameters))).unwrap();
    model.instance(&InstanceSpec { name: "m_0".into(), index: 0, device: None }).unwrap()
}

fn mode(mode: &str, delay_ms: u32) -> String {
    format!(
        "parameters {{ key: 'mode' value {{ string_value: '{mode}' }} }} \
         parameters {{ key: 'delay_ms' value {{ string_value: '{delay_ms}' }} }}"
    )
}

/// Asks once, and returns when the answer is there.
fn ask(instance: &mut dyn Instance) {
    let (answered, answer) = channel();
    let inputs = vec![floats("IN", &[1.0; 1000]), floats("IN1", &[2.0])];
    let wanted = ["OUT", "OUT1"].map(|name| Wanted { name: name.into(), slot: None });
    let request = AdmittedRequest {
        id: Name::default(),
        rows: 1,
        inputs,
        wanted: wanted.into_iter().collect(),
        priority: 0,
        timeout_us: 0,
        sequence: Sequence::default(),
        parameters: Parameters::new(),
        cancel: Cancel::new(),
        reply: Reply::new(move |response| answered.send(response).unwrap_or_default()),
    };
    let job = Job::new(request, ModelVersion::unmetered("m").begin(), 1);
    instance.run(Batch { jobs: vec![job].into(), meter: std::sync::Arc::new(NoMeter) });
    let answer = answer.recv_timeout(NEVER).unwrap();
    assert!(matches!(answer, Response::Final(_)), "{answer:?}");
}

/// Whether the library of this folder is in the process.
fn is_mapped(folder: &Path) -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains(folder.to_str().unwrap())
}

#[test]
fn an_instance_ends_after_the_last_request_is_released() {
    const DELAY_MS: u32 = 500;
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let mut instance = instance(&backend, folder.path(), &mode("late", DELAY_MS));
    ask(&mut *instance);
    let began = Instant::now();
    // The backend's own thread reads the input, reports statistics and releases the request meanwhile.
    drop(instance);
    assert!(began.elapsed() > Duration::from_millis(u64::from(DELAY_MS) / 2), "{:?}", began.elapsed());
    assert!(!is_mapped(folder.path()));
}

#[test]
fn what_is_never_released_keeps_its_model_and_its_library() {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let mut leaking = instance(&backend, folder.path(), &mode("leak", 0));
    ask(&mut *leaking);
    let began = Instant::now();
    drop(leaking);
    assert!(began.elapsed() < NEVER, "{:?}", began.elapsed());
    assert!(is_mapped(folder.path()));
    // The same backend runs other models.
    let mut other = instance(&backend, folder.path(), &mode("", 0));
    ask(&mut *other);
}
