//! Are models loaded and evicted by the rules of control mode `demand`?
#![allow(clippy::unwrap_used)]
#![expect(clippy::disallowed_methods, reason = "the tests look again and again, and are no front end")]

#[path = "support/test_engine.rs"]
mod test_engine;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nerite_backend::identity::Identity;
use nerite_backend::{Infer, LoadContext, Model, Runtime};
use nerite_engine::{Engine, Waiting};
use nerite_memory::Buffer;
use nerite_repository::ControlMode;
use nerite_request::setting::LoadOptions;
use nerite_request::{Peer, Reply, Request, Response, Status};
use tempfile::TempDir;
use test_engine::{Ensembles, Setup, bytes_model, input};

/// The limit on the bytes of loaded models.
const ROOM: u64 = 10;
const X: Peer = Peer::User { uid: 1 };
const Y: Peer = Peer::User { uid: 2 };
/// Longer than any step of these tests takes.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a request for the model `slow` runs.
const SLOW: Duration = Duration::from_millis(500);

fn put(setup: &Setup, model: &str, bytes: usize, backend: &str) {
    let delay = if model == "slow" { SLOW } else { Duration::ZERO };
    let delay = format!("parameters {{ key: 'execute_delay_ms' value {{ string_value: '{}' }} }}", delay.as_millis());
    let version = setup.put(model, &bytes_model(backend, &delay));
    std::fs::write(version.join("weights"), vec![0; bytes]).unwrap();
}

/// An engine with these models of so many bytes, and one that no runtime can load.
fn engine(models: &[(&str, usize)]) -> (Arc<Engine>, TempDir) {
    let mut setup = Setup::new([Arc::new(Identity) as _]);
    for (model, bytes) in models {
        put(&setup, model, *bytes, "identity");
    }
    put(&setup, "broken", 6, "nobodys");
    setup.options.control = ControlMode::Demand;
    setup.options.load_threads = 2;
    setup.options.models_bytes_max = Some(ROOM);
    setup.start()
}

fn demand(engine: &Arc<Engine>, model: &str, peer: &Peer) -> (Waiting, Receiver<Result<(), Status>>) {
    let (sender, receiver) = channel();
    let waiting = engine.demand(model, peer, false, move |outcome| drop(sender.send(outcome))).unwrap();
    (waiting, receiver)
}

#[track_caller]
fn load(engine: &Arc<Engine>, model: &str, peer: &Peer) -> Result<(), Status> {
    let (_waiting, receiver) = demand(engine, model, peer);
    receiver.recv_timeout(PATIENCE).expect("it waits for ever")
}

/// Runs a model. Returns the channel of its last response.
fn infer(engine: &Engine, model: &str) -> Receiver<Response> {
    let (to, from) = channel();
    let input = input(Buffer::from(b"here".to_vec()));
    let reply = Reply::new(move |response| drop(to.send(response)));
    engine.infer(model, None, Request::new(vec![input], Vec::new(), reply));
    from
}

fn up(engine: &Engine) -> Vec<String> {
    engine.all().iter().map(|served| served.name().to_owned()).collect()
}

fn wait_until(what: &str, is_true: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < PATIENCE, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_model_is_wanted_again_while_it_leaves() {
    let (engine, _folder) = engine(&[("slow", 6), ("other", 6)]);
    load(&engine, "slow", &X).unwrap();
    let answer = infer(&engine, "slow");
    let (unloaded, receiver) = channel();
    engine.unload("slow", false, &Peer::own(), move |outcome| unloaded.send(outcome).unwrap());
    receiver.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(up(&engine).is_empty() && answer.try_recv().is_err(), "it has left before it was wanted again");
    load(&engine, "slow", &Y).unwrap();
    answer.recv_timeout(PATIENCE).unwrap();
    assert_eq!(up(&engine), ["slow"]);
    // Its bytes count once, and are given back.
    assert_eq!(engine.demand_counts().unwrap().bytes, 6);
    load(&engine, "other", &Y).unwrap();
    wait_until("the old one is forgotten", || engine.demand_counts().unwrap().bytes == 6);
    assert_eq!(up(&engine), ["other"]);
}

#[test]
fn a_model_stays_until_the_request_that_it_was_loaded_for_is_admitted() {
    let (engine, _folder) = engine(&[("first", 6), ("second", 6)]);
    let (sender, of_x) = channel();
    let waiting = engine.demand("first", &X, true, move |outcome| drop(sender.send(outcome))).unwrap();
    of_x.recv_timeout(PATIENCE).unwrap().unwrap();
    // X knows that its model is loaded, and its task does not run yet. Y may evict models of X.
    let (_waiting, of_y) = demand(&engine, "second", &Y);
    assert!(of_y.recv_timeout(SLOW / 2).is_err(), "X's model left before its request came");
    assert_eq!(up(&engine), ["first"]);
    let answer = infer(&engine, "first");
    drop(waiting);
    of_y.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(matches!(answer.recv_timeout(PATIENCE).unwrap(), Response::Final(_)));
    assert_eq!(up(&engine), ["second"]);
}

#[test]
fn a_request_that_is_never_admitted_does_not_keep_its_model() {
    let (engine, _folder) = engine(&[("first", 6), ("second", 6)]);
    let (sender, of_x) = channel();
    let _waiting = engine.demand("first", &X, true, move |outcome| drop(sender.send(outcome))).unwrap();
    of_x.recv_timeout(PATIENCE).unwrap().unwrap();
    load(&engine, "second", &Y).unwrap();
    assert_eq!(up(&engine), ["second"]);
}

#[test]
fn a_model_that_failed_to_load_takes_no_space() {
    let (engine, _folder) = engine(&[("some", 6), ("huge", 11)]);
    for model in ["broken", "huge", "broken"] {
        assert!(load(&engine, model, &X).is_err());
        wait_until("it is forgotten", || engine.demand_counts().unwrap().models == 0);
    }
    load(&engine, "some", &Y).unwrap();
    let counts = engine.demand_counts().unwrap();
    assert_eq!((counts.models, counts.bytes, counts.loads, counts.evictions), (1, 6, 1, 0));
}

#[test]
fn a_client_that_waits_for_space_does_not_delay_others_who_want_the_same_model() {
    let (engine, _folder) = engine(&[("slow", 5), ("theirs", 5), ("new", 5)]);
    load(&engine, "slow", &X).unwrap();
    load(&engine, "theirs", &Y).unwrap();
    // For X only models that X uses may be evicted, and these are always busy.
    let answers: Vec<_> = (0..4).map(|_| infer(&engine, "slow")).collect();
    let (_waiting, of_x) = demand(&engine, "new", &X);
    wait_until("X has begun to wait", || engine.demand_counts().unwrap().waiting == 1);
    std::thread::sleep(SLOW / 5);
    assert!(of_x.try_recv().is_err());
    // For Y a model that Y uses may be evicted.
    load(&engine, "new", &Y).unwrap();
    of_x.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(answers[3].try_recv().is_err(), "it waited until X's model was idle");
    assert_eq!(up(&engine), ["new", "slow"]);
    assert_eq!(engine.demand_counts().unwrap().loads, 3);
}

#[test]
fn a_nested_request_counts_as_a_use_of_the_model() {
    let (engine, _folder) = engine(&[("first", 4), ("second", 4), ("third", 4)]);
    load(&engine, "first", &X).unwrap();
    load(&engine, "second", &X).unwrap();
    // Models make requests of each other by this method.
    infer(&engine, "first").recv_timeout(PATIENCE).unwrap();
    load(&engine, "third", &X).unwrap();
    assert_eq!(up(&engine), ["first", "third"]);
}

fn load_by_name(engine: &Arc<Engine>, model: &str, peer: &Peer) -> Result<(), Status> {
    let (to, outcome) = channel();
    engine.load(model, LoadOptions::default(), peer, move |loaded| to.send(loaded).unwrap());
    outcome.recv_timeout(PATIENCE).unwrap()
}

/// Loads a model with a configuration and a file of `bytes` bytes that are sent.
fn load_sent(engine: &Arc<Engine>, model: &str, bytes: usize) -> Result<(), Status> {
    let (to, outcome) = channel();
    let config = r#"{"backend": "identity", "input": [{"name": "IN", "data_type": "TYPE_UINT8", "dims": [-1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_UINT8", "dims": [-1]}]}"#;
    let files = vec![("1/weights".to_owned(), Arc::new(vec![0u8; bytes]) as _)];
    let options = LoadOptions { config: Some(config.to_owned()), files, ..LoadOptions::default() };
    engine.load(model, options, &X, move |loaded| to.send(loaded).unwrap());
    outcome.recv_timeout(PATIENCE).unwrap()
}

#[test]
fn a_model_that_was_sent_takes_the_room_of_its_own_files_and_stays() {
    let (engine, _folder) = engine(&[("first", 4), ("second", 3), ("third", 4)]);
    load(&engine, "first", &X).unwrap();
    // It is in no repository.
    load_sent(&engine, "new", 7).unwrap();
    assert_eq!((up(&engine), engine.demand_counts().unwrap().bytes), (vec!["new".to_owned()], 7));
    load(&engine, "second", &Y).unwrap();
    let refused = load(&engine, "third", &Y).unwrap_err();
    assert!(refused.message.contains("beside the models that stay there is room for 3"), "{refused}");
    // The repository's has 3 bytes, and what is sent has too many.
    let refused = load_sent(&engine, "second", 4).unwrap_err();
    assert!(refused.message.starts_with("model 'second' has 4 bytes"), "{refused}");
    load_sent(&engine, "second", 2).unwrap();
    assert_eq!(engine.demand_counts().unwrap().bytes, 9);
    // Loaded from its repository, it may leave again.
    load_by_name(&engine, "second", &X).unwrap();
    let (to, unloaded) = channel();
    engine.unload("new", false, &Peer::own(), move |outcome| to.send(outcome).unwrap());
    unloaded.recv_timeout(PATIENCE).unwrap().unwrap();
    wait_until("it is forgotten", || engine.demand_counts().unwrap().bytes == 3);
    load(&engine, "first", &X).unwrap();
    // X holds more than its share, and Y may replace what only it protects: the one that was used least recently leaves.
    load(&engine, "third", &Y).unwrap();
    assert_eq!(up(&engine), ["first", "third"]);
}

#[test]
fn a_load_by_name_takes_room_as_a_request_does() {
    let (engine, _folder) = engine(&[("first", 6), ("second", 6), ("huge", 11)]);
    load(&engine, "first", &X).unwrap();
    load_by_name(&engine, "second", &X).unwrap();
    assert_eq!(up(&engine), ["second"]);
    let refused = load_by_name(&engine, "huge", &X).unwrap_err();
    assert!(refused.message.starts_with("model 'huge' has 11 bytes"), "{refused}");
    // X uses more than its share, so Y's load may evict its models.
    load_by_name(&engine, "first", &Y).unwrap();
    assert_eq!(up(&engine), ["first"]);
    let counts = engine.demand_counts().unwrap();
    assert_eq!((counts.models, counts.bytes, counts.loads, counts.evictions), (1, 6, 1, 2));
    // A model that is loaded already is loaded again without more space.
    load_by_name(&engine, "first", &X).unwrap();
    assert_eq!(engine.demand_counts().unwrap().bytes, 6);
}

#[test]
fn a_load_by_name_waits_for_a_model_with_a_request_in_flight() {
    let (engine, _folder) = engine(&[("slow", 6), ("new", 6)]);
    load(&engine, "slow", &X).unwrap();
    let answer = infer(&engine, "slow");
    load_by_name(&engine, "new", &X).unwrap();
    assert!(answer.try_recv().is_ok(), "the model left while it had a request");
    assert_eq!(up(&engine), ["new"]);
}

/// A runtime whose load begins by a message, and ends once the test allows it.
struct Gated {
    begun: Mutex<Sender<()>>,
    go_on: Mutex<Receiver<()>>,
}

impl Runtime for Gated {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn engine(&self) -> String {
        "none".to_owned()
    }

    fn load(&self, context: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        self.begun.lock().unwrap().send(()).unwrap();
        self.go_on.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        Identity.load(context)
    }
}

/// Adds an ensemble of so many bytes that runs these models one after the other.
fn put_ensemble(setup: &Setup, model: &str, bytes: usize, parts: &[&str]) {
    let tensor = |at: usize| match at {
        0 => "IN".to_owned(),
        at if at == parts.len() => "OUT".to_owned(),
        at => format!("t{at}"),
    };
    let step = |(at, part): (usize, &&str)| {
        format!(
            "step {{ model_name: '{part}' model_version: -1 input_map {{ key: 'IN' value: '{}' }} \
             output_map {{ key: 'OUT' value: '{}' }} }} ",
            tensor(at),
            tensor(at + 1)
        )
    };
    let steps: String = parts.iter().enumerate().map(step).collect();
    let config = bytes_model("", &format!("platform: 'ensemble' ensemble_scheduling {{ {steps} }}"));
    std::fs::write(setup.put(model, &config).join("weights"), vec![0; bytes]).unwrap();
}

/// An engine with these models, and with these ensembles of so many bytes.
fn engine_with(
    runtimes: Vec<Arc<dyn Runtime>>,
    models: &[(&str, usize, &str)],
    ensembles: &[(&str, usize, &[&str])],
) -> (Arc<Engine>, TempDir) {
    let mut setup = Setup::new(runtimes);
    for (model, bytes, backend) in models {
        put(&setup, model, *bytes, backend);
    }
    for (model, bytes, parts) in ensembles {
        put_ensemble(&setup, model, *bytes, parts);
    }
    setup.options.control = ControlMode::Demand;
    setup.options.load_threads = 2;
    setup.options.models_bytes_max = Some(ROOM);
    setup.start()
}

fn engine_of_ensembles(models: &[(&str, usize)], ensembles: &[(&str, usize, &[&str])]) -> (Arc<Engine>, TempDir) {
    let models: Vec<_> = models.iter().map(|(model, bytes)| (*model, *bytes, "identity")).collect();
    engine_with(vec![Arc::new(Identity), Arc::new(Ensembles)], &models, ensembles)
}

#[track_caller]
fn check_up(engine: &Engine, models: &[&str], bytes: u64) {
    assert_eq!(
        (up(engine), engine.demand_counts().unwrap().bytes),
        (models.iter().map(|m| (*m).to_owned()).collect(), bytes)
    );
}

#[test]
fn a_model_does_not_leave_for_an_ensemble_that_is_made_of_it() {
    let (engine, _folder) = engine_of_ensembles(&[("part", 4), ("other", 4)], &[("whole", 3, &["part"])]);
    load(&engine, "part", &X).unwrap();
    load(&engine, "other", &X).unwrap();
    // The part is the one that was used least recently.
    load(&engine, "whole", &X).unwrap();
    check_up(&engine, &["part", "whole"], 7);
}

#[test]
fn an_ensemble_takes_the_room_of_the_parts_of_its_parts_too() {
    let ensembles: [(&str, usize, &[&str]); 2] = [("outer", 1, &["inner"]), ("inner", 1, &["leaf"])];
    let (engine, _folder) = engine_of_ensembles(&[("leaf", 4), ("other", 6)], &ensembles);
    load(&engine, "other", &X).unwrap();
    load_by_name(&engine, "outer", &X).unwrap();
    check_up(&engine, &["inner", "leaf", "outer"], 6);
}

#[test]
fn an_ensemble_that_never_fits_with_its_parts_is_refused_and_its_parts_stay() {
    let (engine, _folder) = engine_of_ensembles(&[("part", 6)], &[("whole", 5, &["part"])]);
    load(&engine, "part", &X).unwrap();
    let refused = load(&engine, "whole", &X).unwrap_err();
    assert!(refused.message.contains("there is room for 10"), "{refused}");
    check_up(&engine, &["part"], 6);
}

#[test]
fn an_ensemble_that_cannot_be_loaded_gives_the_room_of_its_parts_back() {
    let broken = [("broken", 4, "nobodys"), ("part", 3, "identity")];
    let runtimes: Vec<Arc<dyn Runtime>> = vec![Arc::new(Identity), Arc::new(Ensembles)];
    let (engine, _folder) = engine_with(runtimes, &broken, &[("whole", 1, &["part", "broken"])]);
    load(&engine, "whole", &X).unwrap_err();
    wait_until("the ensemble and its broken part are forgotten", || engine.demand_counts().unwrap().bytes == 3);
    check_up(&engine, &["part"], 3);
}

#[test]
fn the_parts_of_an_ensemble_stay_while_another_of_them_is_loaded() {
    let ((begins, begun), (go_on, allowed)) = (channel(), channel());
    let gated = Gated { begun: Mutex::new(begins), go_on: Mutex::new(allowed) };
    let runtimes: Vec<Arc<dyn Runtime>> = vec![Arc::new(Identity), Arc::new(Ensembles), Arc::new(gated)];
    let models = [("part", 6, "identity"), ("late", 2, "gated"), ("other", 6, "identity")];
    let (engine, _folder) = engine_with(runtimes, &models, &[("whole", 1, &["part", "late"])]);
    load(&engine, "part", &X).unwrap();
    let (_waiting, of_x) = demand(&engine, "whole", &X);
    begun.recv_timeout(PATIENCE).unwrap();
    // X holds more than its share, so Y may evict its models.
    let (_other, of_y) = demand(&engine, "other", &Y);
    assert!(of_y.recv_timeout(SLOW).is_err(), "a part left although its ensemble is being loaded");
    go_on.send(()).unwrap();
    of_x.recv_timeout(PATIENCE).unwrap().unwrap();
    of_y.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(up(&engine).contains(&"other".to_owned()));
}
