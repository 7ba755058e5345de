//! Does a warmup end when nobody waits for it, so that its place is free for other loads?
#![allow(clippy::unwrap_used)]

#[path = "support/test_engine.rs"]
mod test_engine;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use nerite_backend::{Compute, Job, Times};
use nerite_engine::Engine;
use nerite_repository::ControlMode;
use nerite_request::setting::LoadOptions;
use nerite_request::{Cancel, Peer, Status};
use tempfile::TempDir;
use test_engine::{Computing, Setup, bytes_model};

/// A model that computes until its request is cancelled.
#[derive(Clone, Default)]
struct Endless {
    begun: Arc<AtomicUsize>,
}

impl Compute for Endless {
    fn compute(&mut self, job: &mut Job, _: &mut Times) -> Result<(), Status> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        while !job.is_cancelled() {
            std::thread::yield_now();
        }
        Err(Status::internal("a run that was cancelled"))
    }
}

struct Server {
    engine: Arc<Engine>,
    model: Endless,
    _folder: TempDir,
}

type Loaded = mpsc::Receiver<Result<(), Status>>;

/// The warmup of a model of one row, as text and as JSON.
const SAMPLE: &str = "model_warmup { name: 'w' batch_size: 1 count: 50000 inputs { key: 'IN' value { data_type: TYPE_UINT8 dims: 1 zero_data: true } } }";
const SENT: &str = r#"{"backend": "endless", "input": [{"name": "IN", "data_type": "TYPE_UINT8", "dims": [-1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_UINT8", "dims": [-1]}], "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
    "model_warmup": [{"name": "w", "batch_size": 2, "count": 50000, "inputs": {"IN": {"data_type": "TYPE_UINT8", "dims": [1], "zero_data": true}}}],
    "max_batch_size": 2}"#;

/// An engine that loads one model at a time. `m` has an endless warmup, and `n` has none.
fn server() -> Server {
    let model = Endless::default();
    let of_instance = model.clone();
    let mut setup = Setup::new([Arc::new(Computing("endless", move || of_instance.clone())) as _]);
    setup.options.control = ControlMode::Explicit;
    let one = "instance_group [{ count: 1 kind: KIND_CPU }]";
    setup.put("m", &bytes_model("endless", &format!("{one} {SAMPLE}")));
    setup.put("n", &bytes_model("endless", one));
    let (engine, folder) = setup.start();
    Server { engine, model, _folder: folder }
}

impl Server {
    fn load(&self, model: &str, sent: Option<&str>, gone: &Cancel) -> Loaded {
        self.load_by(1, model, sent, gone)
    }

    /// A load by this user.
    fn load_by(&self, uid: u32, model: &str, sent: Option<&str>, gone: &Cancel) -> Loaded {
        let config = sent.map(str::to_owned);
        let options = LoadOptions { config, gone: gone.clone(), ..LoadOptions::default() };
        let (to, from) = mpsc::channel();
        self.engine.load(model, options, &Peer::User { uid }, move |outcome| to.send(outcome).unwrap());
        from
    }

    /// Returns when the warmup runs.
    fn runs(&self, count: usize) {
        while self.model.begun.load(Ordering::SeqCst) < count {
            std::thread::yield_now();
        }
    }
}

#[track_caller]
fn check_ended(loaded: &Loaded, model: &str, why: &str) {
    let refused = loaded.recv().unwrap().unwrap_err();
    assert_eq!(
        refused.message,
        format!(
            "load failed for model '{model}': version 1 is at UNAVAILABLE state: Unavailable: the load of model '{model}' was ended: {why};\n"
        )
    );
}

#[test]
fn a_client_that_goes_ends_the_warmup_of_the_configuration_that_it_sent() {
    let (server, client) = (server(), Cancel::new());
    let loaded = server.load("n", Some(SENT), &client);
    server.runs(1);
    let other = server.load("n", None, &Cancel::new());
    client.cancel();
    check_ended(&loaded, "n", "the client that sent the configuration has gone");
    assert_eq!(other.recv().unwrap(), Ok(()));
    // A client that has gone before its turn comes.
    check_ended(&server.load("n", Some(SENT), &client), "n", "the client that sent the configuration has gone");
}

#[test]
fn an_unload_ends_the_warmup_of_its_model() {
    let (server, client) = (server(), Cancel::new());
    let loaded = server.load("m", None, &client);
    server.runs(1);
    // The repository's own configuration is not this client's, and others may wait for the model.
    client.cancel();
    let other = server.load("n", None, &Cancel::new());
    assert!(other.recv_timeout(Duration::from_millis(50)).is_err(), "there is one place for loads");
    let (to, from) = mpsc::channel();
    server.engine.unload("m", false, &Peer::own(), move |outcome| to.send(outcome).unwrap());
    check_ended(&loaded, "m", "the model is unloaded");
    assert_eq!((from.recv().unwrap(), other.recv().unwrap()), (Ok(()), Ok(())));
}

#[test]
fn a_stop_ends_all_warmups() {
    let server = server();
    let loaded = server.load("m", None, &Cancel::new());
    server.runs(1);
    assert!(server.engine.stop(Instant::now() + Duration::from_mins(1)));
    assert!(loaded.recv().unwrap().is_err());
}

#[test]
fn a_client_with_all_places_for_loads_leaves_one_for_another() {
    let (server, client) = (server(), Cancel::new());
    let endless = server.load("m", Some(SENT), &client);
    server.runs(1);
    let own = server.load("n", None, &Cancel::new());
    assert_eq!(server.load_by(2, "n", None, &Cancel::new()).recv().unwrap(), Ok(()));
    assert!(own.recv_timeout(Duration::from_millis(50)).is_err(), "there is one place for this client's loads");
    client.cancel();
    assert!(endless.recv().unwrap().is_err());
    assert_eq!(own.recv().unwrap(), Ok(()));
}
