//! What does the engine remember of an ensemble whose models have changed and were unloaded?
#![allow(clippy::unwrap_used)]

#[path = "support/test_engine.rs"]
mod test_engine;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

use nerite_backend::identity::Identity;
use nerite_backend::{LoadContext, Model, Models, Runtime};
use nerite_config::ModelConfig;
use nerite_engine::Engine;
use nerite_repository::ControlMode;
use nerite_request::setting::LoadOptions;
use nerite_request::{Peer, Status};
use tempfile::TempDir;
use test_engine::{Setup, bytes_model};

/// The most that a test waits.
const PATIENCE: Duration = Duration::from_mins(1);

/// A runtime of the ensemble, which fits its part or not as the test says.
#[derive(Default)]
struct Fitting(AtomicBool);

impl Runtime for Fitting {
    fn name(&self) -> &'static str {
        "ensemble"
    }

    fn engine(&self) -> String {
        "a test".into()
    }

    fn check_models(&self, _: &ModelConfig, _: &Models) -> Result<(), Status> {
        if self.0.load(Ordering::Relaxed) { Ok(()) } else { Err(Status::invalid("it does not fit")) }
    }

    fn load(&self, context: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        Identity.load(context)
    }
}

/// A runtime of the part. It says when a load begins, and a load ends when the test says so, if the test has set both.
#[derive(Default)]
struct Held(Mutex<Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>>);

impl Runtime for Held {
    fn name(&self) -> &'static str {
        "held"
    }

    fn engine(&self) -> String {
        "a test".into()
    }

    fn load(&self, context: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        if let Some((begins, ends)) = self.0.lock().unwrap().take() {
            begins.send(()).unwrap();
            ends.recv_timeout(PATIENCE).unwrap();
        }
        Identity.load(context)
    }
}

/// An engine with the model `part` and an ensemble of it.
struct Server {
    engine: Arc<Engine>,
    folder: TempDir,
    fitting: Arc<Fitting>,
    held: Arc<Held>,
}

fn server(ensemble: &str) -> Server {
    let (fitting, held) = (Arc::new(Fitting(true.into())), Arc::<Held>::default());
    let mut setup = Setup::new([Arc::<Fitting>::clone(&fitting) as Arc<dyn Runtime>, Arc::<Held>::clone(&held) as _]);
    setup.options.control = ControlMode::Explicit;
    setup.options.load_models = vec![ensemble.to_owned()];
    setup.put("part", &bytes_model("held", ""));
    let steps = "platform: 'ensemble' ensemble_scheduling { step [{
        model_name: 'part' model_version: -1 input_map { key: 'IN' value: 'IN' } output_map { key: 'OUT' value: 'OUT' }
    }] }";
    setup.put(ensemble, &bytes_model("", steps));
    let (engine, folder) = setup.start();
    assert_eq!(engine.served(ensemble).len(), 1);
    Server { engine, folder, fitting, held }
}

impl Server {
    /// Begins a load of the part, whose files are others than before if `more` is.
    fn begin_load(&self, more: &str) -> mpsc::Receiver<Result<(), Status>> {
        std::fs::write(self.folder.path().join("part/config.pbtxt"), bytes_model("held", more)).unwrap();
        let (to, done) = mpsc::channel();
        self.engine.load("part", LoadOptions::default(), &Peer::User { uid: 1 }, move |end| to.send(end).unwrap());
        done
    }

    fn load(&self, more: &str) {
        self.begin_load(more).recv_timeout(PATIENCE).unwrap().unwrap();
    }

    fn unload(&self, model: &str) {
        let (to, done) = mpsc::channel();
        self.engine.unload(model, false, &Peer::own(), move |end| to.send(end).unwrap());
        done.recv_timeout(PATIENCE).unwrap().unwrap();
    }
}

/// Whether an ensemble that went with its part comes back with the part. `fits`: whether it fitted the part before.
#[track_caller]
fn check_return(fits: bool, is_unloaded: bool, comes: bool) {
    let server = server("ens");
    server.fitting.0.store(fits, Ordering::Relaxed);
    server.load("max_batch_size: 2");
    assert_eq!(server.engine.served("ens").len(), usize::from(fits));
    assert_eq!(server.engine.missing().is_empty(), fits);
    server.unload("part");
    assert!(server.engine.served("ens").is_empty() && server.engine.missing().is_empty());
    if is_unloaded {
        server.unload("ens");
    }
    server.fitting.0.store(true, Ordering::Relaxed);
    server.load("max_batch_size: 3");
    assert_eq!(server.engine.served("part").len(), 1);
    assert_eq!(server.engine.served("ens").len(), usize::from(comes), "fits: {fits}, unloaded: {is_unloaded}");
}

#[test]
fn an_ensemble_that_went_with_its_part_comes_back_with_it_unless_it_was_unloaded_itself() {
    check_return(true, false, true);
    check_return(false, false, true);
    check_return(true, true, false);
    check_return(false, true, false);
}

/// The errors in the log.
struct Errors(Mutex<Vec<String>>);

impl log::Log for Errors {
    fn enabled(&self, of: &log::Metadata<'_>) -> bool {
        of.level() == log::Level::Error
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// The log of all tests here.
fn errors() -> &'static Errors {
    static ERRORS: OnceLock<Errors> = OnceLock::new();
    ERRORS.get_or_init(|| Errors(Mutex::default()))
}

#[test]
fn a_stop_during_a_load_of_a_part_says_nothing_of_its_ensembles() {
    log::set_logger(errors()).unwrap();
    log::set_max_level(log::LevelFilter::Error);
    let server = server("stopped");
    let (begins, begun) = mpsc::channel();
    let (ends, end) = mpsc::channel();
    *server.held.0.lock().unwrap() = Some((begins, end));
    let done = server.begin_load("max_batch_size: 2");
    begun.recv_timeout(PATIENCE).unwrap();
    assert!(server.engine.stop(Instant::now() + PATIENCE));
    ends.send(()).unwrap();
    assert!(done.recv_timeout(PATIENCE).unwrap().is_err(), "the stop came after the load began");
    let errors = errors().0.lock().unwrap().clone();
    let of_ensemble: Vec<_> = errors.iter().filter(|error| error.contains("'stopped'")).collect();
    assert!(of_ensemble.is_empty(), "{of_ensemble:?}");
}
