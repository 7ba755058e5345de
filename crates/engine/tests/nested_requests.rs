//! Can a model make requests of other models of the same server, and what happens if these are busy?
#![allow(clippy::unwrap_used)]

#[path = "support/test_engine.rs"]
mod test_engine;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nerite_backend::identity::Identity;
use nerite_backend::{
    Compute, InOrder, Infer, Instance, InstanceSpec, Job, LoadContext, Model, Models, Runtime, Times,
};
use nerite_engine::Engine;
use nerite_memory::Buffer;
use nerite_request::{Code, Request, Status, Wanted};
use nerite_tensor::Tensor;
use tempfile::TempDir;
use test_engine::{Answer, Setup, bytes_model, input, one_reply};

/// How long a model waits for the model that it asks.
const PATIENCE: Duration = Duration::from_millis(200);

/// A runtime whose models send their input to the model that the parameter `asks` names, and answer with its answer.
struct Forwarding;

struct CallingModel {
    models: Models,
    target: String,
}

struct CallingInstance(Arc<CallingModel>);

impl Runtime for Forwarding {
    fn name(&self) -> &'static str {
        "forwarding"
    }

    fn engine(&self) -> String {
        "a test".into()
    }

    fn load(&self, context: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        let target = context.config.parameters["asks"].string_value.clone();
        Ok(Arc::new(Loaded(Arc::new(CallingModel { models: context.models.clone(), target }))))
    }
}

struct Loaded(Arc<CallingModel>);

impl Model for Loaded {
    fn instance(&self, _: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(InOrder(CallingInstance(Arc::clone(&self.0)))))
    }
}

impl Compute for CallingInstance {
    fn compute(&mut self, job: &mut Job, _: &mut Times) -> Result<(), Status> {
        let CallingModel { models, target } = &*self.0;
        let inputs = job.inputs().to_vec();
        let mut answer = models.infer_one(target, None, PATIENCE, |reply| Request::new(inputs, Vec::new(), reply))?;
        for output in answer.outputs.drain(..) {
            job.put_buffer(&output.name, output.datatype, output.shape, output.data);
        }
        Ok(())
    }
}

/// An engine with these models. Each asks the other one, or is an identity model if that is empty.
fn engine(models: &[(&str, &str)]) -> (Arc<Engine>, TempDir) {
    let setup = Setup::new([Arc::new(Identity) as _, Arc::new(Forwarding) as _]);
    for (name, target) in models {
        let backend = if target.is_empty() { "identity" } else { "forwarding" };
        let parameters = format!("parameters {{ key: 'asks' value {{ string_value: '{target}' }} }}");
        setup.put(name, &bytes_model(backend, &parameters));
    }
    setup.start()
}

fn infer(engine: &Engine, model: &str, name: &str, outputs: &[&str]) -> Answer {
    let (reply, from) = one_reply();
    let input = Tensor { name: name.into(), ..input(Buffer::from(b"here".to_vec())) };
    let wanted = outputs.iter().map(|name| Wanted { name: (*name).into(), slot: None }).collect();
    engine.infer(model, None, Request::new(vec![input], wanted, reply));
    from.recv().unwrap()
}

#[track_caller]
fn check(engine: &Engine, model: &str, expected: Result<&[u8], (Code, &str)>) {
    match (infer(engine, model, "IN", &[]), expected) {
        (Ok(made), Ok(bytes)) => assert_eq!(made.outputs[0].data.private_bytes(), Some(bytes)),
        (Err(error), Err((code, text))) => {
            assert_eq!(error.code, code, "{error}");
            assert!(error.message.contains(text), "'{error}' does not say '{text}'");
        }
        (got, expected) => panic!("{got:?}, expected {expected:?}"),
    }
}

#[test]
fn a_model_asks_others_and_gets_their_answers_and_their_errors() {
    let (engine, _folder) = engine(&[("leaf", ""), ("one", "leaf"), ("two", "one"), ("lost", "nowhere")]);
    for model in ["leaf", "one", "two"] {
        check(&engine, model, Ok(b"here"));
    }
    check(&engine, "lost", Err((Code::NotFound, "'nowhere'")));
}

#[test]
fn requests_of_models_are_checked_like_those_of_clients() {
    let (engine, _folder) = engine(&[("leaf", "")]);
    let text = |input: &str, outputs: &[&str]| infer(&engine, "leaf", input, outputs).unwrap_err().message;
    assert_eq!(text("X", &[]), "unexpected inference input 'X' for model 'leaf', allowed inputs are: ['IN']");
    assert_eq!(text("IN", &["X"]), "unexpected inference output 'X' for model 'leaf', allowed outputs are: ['OUT']");
    // An output that is named twice is wanted once.
    assert_eq!(infer(&engine, "leaf", "IN", &["OUT", "OUT"]).unwrap().outputs.len(), 1);
    assert_eq!(infer(&engine, "absent", "IN", &[]).unwrap_err().code, Code::NotFound);
}

#[test]
fn a_model_that_waits_for_itself_gives_up_and_the_server_goes_on() {
    let (engine, _folder) = engine(&[("self", "self"), ("ping", "pong"), ("pong", "ping"), ("leaf", "")]);
    let late = Err((Code::Unavailable, "did not answer within 200 ms"));
    for _ in 0..2 {
        check(&engine, "self", late);
        check(&engine, "ping", late);
        check(&engine, "leaf", Ok(b"here"));
    }
    // A request that was given up is not in flight any more.
    assert!(engine.stop(Instant::now() + Duration::from_mins(1)));
}
