//! Are models loaded and evicted by the rules of control mode `demand`?
#![allow(clippy::unwrap_used)]
#![expect(clippy::disallowed_methods, reason = "the tests look again and again, and are no front end")]

#[path = "support/test_engine.rs"]
mod test_engine;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nerite_backend::Infer;
use nerite_backend::identity::Identity;
use nerite_engine::{Engine, Waiting};
use nerite_memory::Buffer;
use nerite_repository::ControlMode;
use nerite_request::setting::LoadOptions;
use nerite_request::{Peer, Reply, Request, Response, Status};
use tempfile::TempDir;
use test_engine::{Setup, bytes_model, input};

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
    let waiting = engine.demand(model, peer, move |outcome| drop(sender.send(outcome))).unwrap();
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
    engine.unload("slow", false, move |outcome| unloaded.send(outcome).unwrap());
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
