//! Is a compiled backend finalised only when no part of it is in use?
#![allow(clippy::unwrap_used)]

#[path = "support/sample.rs"]
mod sample;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nerite_backend::conformance::context;
use nerite_backend::{Batch, BroughtAlong, Instance, InstanceSpec, Job, LoadContext, ModelVersion, NoMeter, Runtime};
use nerite_cabi::{ModelLibraries, Options};
use nerite_request::{AdmittedRequest, Cancel, Name, Parameters, Reply, Response, Sequence, Wanted};

use sample::{backend, config, floats};

/// Longer than any step of these tests takes.
const NEVER: Duration = Duration::from_mins(1);
/// How long the backend's `Finalize` takes.
const FINALIZE_MS: u64 = 600;

fn instance(backend: &dyn Runtime, folder: &Path, parameters: &str) -> Box<dyn Instance> {
    let model = backend.load(&load_context(folder, parameters)).unwrap();
    model.instance(&InstanceSpec { name: "m_0".into(), index: 0, device: None }).unwrap()
}

/// A model with these parameters.
fn load_context(folder: &Path, parameters: &str) -> LoadContext {
    let mut context = context(folder, config(parameters));
    context.settings.insert("finalize_ms".to_owned(), FINALIZE_MS.to_string());
    context
}

fn mode(mode: &str, delay_ms: u32) -> String {
    format!(
        "parameters {{ key: 'mode' value {{ string_value: '{mode}' }} }} \
         parameters {{ key: 'delay_ms' value {{ string_value: '{delay_ms}' }} }}"
    )
}

/// Runs one request, and returns when it is answered.
fn infer(instance: &mut dyn Instance) {
    let (answered, answer) = channel();
    let inputs = vec![floats("IN", &[1.0; 1000]), floats("IN1", &[2.0])];
    let wanted = ["OUT", "OUT1"].map(|name| Wanted { name: name.into(), slot: None });
    let request = AdmittedRequest {
        id: Name::default(),
        rows: 1,
        inputs: inputs.into(),
        wanted: wanted.into_iter().collect(),
        priority: 0,
        timeout_us: 0,
        sequence: Sequence::default(),
        parameters: Parameters::new(),
        cancel: Cancel::new(),
        reply: Reply::new(move |response| answered.send(response).unwrap_or_default()),
    };
    let job = Job::new(request, ModelVersion::unmetered("m").begin(), 1);
    instance.run(Batch { jobs: vec![job].into(), meter: Arc::new(NoMeter) });
    let answer = answer.recv_timeout(NEVER).unwrap();
    assert!(matches!(answer, Response::Final(_)), "{answer:?}");
}

/// Whether the library in this folder is mapped.
fn is_mapped(folder: &Path) -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains(folder.to_str().unwrap())
}

#[test]
fn an_instance_ends_after_the_last_request_is_released() {
    const DELAY_MS: u32 = 500;
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let mut instance = instance(&backend, folder.path(), &mode("late", DELAY_MS));
    infer(&mut *instance);
    let began = Instant::now();
    // Meanwhile the backend's own thread reads the input, reports statistics and releases the request.
    drop(instance);
    assert!(began.elapsed() > Duration::from_millis(u64::from(DELAY_MS) / 2), "{:?}", began.elapsed());
    assert!(!is_mapped(folder.path()));
}

#[test]
fn an_unreleased_request_keeps_its_model_and_its_library() {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let mut leaking = instance(&backend, folder.path(), &mode("leak", 0));
    infer(&mut *leaking);
    let began = Instant::now();
    drop(leaking);
    assert!(began.elapsed() < NEVER, "{:?}", began.elapsed());
    assert!(is_mapped(folder.path()));
    // The same backend runs other models.
    let mut other = instance(&backend, folder.path(), &mode("", 0));
    infer(&mut *other);
}

/// `Initialize` is not called while `Finalize` runs.
#[track_caller]
fn check_begins_after_its_end(folder: &Path, backend: impl Fn() -> Arc<dyn Runtime>) {
    let first = instance(&*backend(), folder, &mode("", 0));
    std::thread::scope(|scope| {
        let (ending, ends) = channel::<()>();
        scope.spawn(move || {
            drop(first);
            drop(ending);
        });
        let within = Duration::from_millis(FINALIZE_MS / 3);
        assert_eq!(
            ends.recv_timeout(within),
            Err(RecvTimeoutError::Timeout),
            "the last function takes {FINALIZE_MS} ms"
        );
        // It refuses to be initialised twice.
        infer(&mut *instance(&*backend(), folder, &mode("", 0)));
    });
    assert!(!is_mapped(folder));
}

#[test]
fn a_backend_begins_again_after_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let backend: Arc<dyn Runtime> = Arc::new(backend(folder.path()));
    check_begins_after_its_end(folder.path(), || Arc::clone(&backend));
}

#[test]
fn a_backend_that_a_model_brings_begins_again_after_its_end() {
    let folder = tempfile::tempdir().unwrap();
    drop(backend(folder.path()));
    let libraries =
        ModelLibraries::new(Options { directory: folder.path().to_owned(), auto_complete: false, reports: None });
    let model_dir = folder.path().join("sample");
    check_begins_after_its_end(folder.path(), || {
        libraries.find(&config(""), &model_dir, &model_dir.join("1")).unwrap()
    });
}
