//! Is a compiled backend finalised only when no part of it is in use?
#![allow(clippy::unwrap_used)]

#[path = "support/requests.rs"]
mod requests;
#[path = "support/sample.rs"]
mod sample;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nerite_backend::conformance::context;
use nerite_backend::{Instance, LoadContext, Meter, ModelSuppliedRuntime, ModelVersion, NoMeter, Runtime};
use nerite_cabi::{ModelLibraries, Options};
use nerite_request::{Reply, Response};

use requests::{batch, instance, request};
use sample::{backend, config, floats};

/// Longer than any step of these tests takes.
const NEVER: Duration = Duration::from_mins(1);
/// How long the backend's `Finalize` takes.
const FINALIZE_MS: u64 = 600;

/// An instance of a model with these parameters.
fn load(backend: &dyn Runtime, folder: &Path, parameters: &str) -> Box<dyn Instance> {
    instance(&*backend.load(&load_context(folder, parameters)).unwrap(), 0, None).unwrap()
}

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
    let reply = Reply::new(move |response| answered.send(response).unwrap_or_default());
    let meter: Arc<dyn Meter> = Arc::new(NoMeter);
    instance.run(batch(request(inputs, ["OUT", "OUT1"], reply), &ModelVersion::unmetered("m"), &meter));
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
    let mut instance = load(&backend, folder.path(), &mode("late", DELAY_MS));
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
    let mut leaking = load(&backend, folder.path(), &mode("leak", 0));
    infer(&mut *leaking);
    let began = Instant::now();
    drop(leaking);
    assert!(began.elapsed() < NEVER, "{:?}", began.elapsed());
    assert!(is_mapped(folder.path()));
    // The same backend runs other models.
    let mut other = load(&backend, folder.path(), &mode("", 0));
    infer(&mut *other);
}

/// `Initialize` is not called while `Finalize` runs.
#[track_caller]
fn check_begins_after_its_end(folder: &Path, backend: impl Fn() -> Arc<dyn Runtime>) {
    let first = load(&*backend(), folder, &mode("", 0));
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
        infer(&mut *load(&*backend(), folder, &mode("", 0)));
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
#[expect(clippy::disallowed_methods, reason = "other threads must be within the library first")]
fn a_backend_that_takes_long_to_open_delays_no_other() {
    let folder = tempfile::tempdir().unwrap();
    drop(backend(folder.path()));
    let libraries =
        ModelLibraries::new(Options { directory: folder.path().to_owned(), auto_complete: false, reports: None });
    let slow_dir = folder.path().join("sample");
    let other_dir = folder.path().join("other");
    std::fs::create_dir(&other_dir).unwrap();
    std::fs::copy(slow_dir.join("libtriton_sample.so"), other_dir.join("libtriton_sample.so")).unwrap();
    let find = |dir: &Path| libraries.find(&config(""), dir, &dir.join("1")).unwrap();
    let (slow, first) = (find(&slow_dir), load(&*find(&slow_dir), folder.path(), &mode("", 0)));
    std::thread::scope(|scope| {
        scope.spawn(|| drop(first));
        // The library must end before it is opened again.
        std::thread::sleep(Duration::from_millis(FINALIZE_MS / 6));
        let again = scope.spawn(|| drop(load(&*slow, folder.path(), &mode("", 0))));
        std::thread::sleep(Duration::from_millis(FINALIZE_MS / 6));
        drop(find(&other_dir));
        assert!(!again.is_finished(), "the other backend is found while this one waits");
    });
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
