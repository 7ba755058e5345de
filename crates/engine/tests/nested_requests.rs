//! Can a model make requests of other models of the same server, and what happens if these are busy?
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use nerite_backend::identity::Identity;
use nerite_backend::{
    Compute, InOrder, Infer, Instance, InstanceSpec, Job, LoadContext, Model, Models, Runtime, Times,
};
use nerite_config::HostFacts;
use nerite_engine::{Engine, Loader, Options, QueueLimits, Runtimes};
use nerite_memory::Buffer;
use nerite_repository::{ControlMode, Store, StoreOptions};
use nerite_request::{Code, ExactlyOne, InferResponse, Reply, Request, Status, Wanted};
use nerite_tensor::{DataType, Shape, Tensor};
use tempfile::TempDir;

/// How long a model waits for the model that it asks.
const PATIENCE: Duration = Duration::from_millis(200);

/// A runtime whose models send their input to the model that the parameter `asks` names, and answer with its answer.
struct Forwarding;

struct AskingModel {
    models: Models,
    asks: String,
}

struct AskingInstance(Arc<AskingModel>);

impl Runtime for Forwarding {
    fn name(&self) -> &'static str {
        "forwarding"
    }

    fn engine(&self) -> String {
        "a test".into()
    }

    fn load(&self, context: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        let asks = context.config.parameters["asks"].string_value.clone();
        Ok(Arc::new(Loaded(Arc::new(AskingModel { models: context.models.clone(), asks }))))
    }
}

struct Loaded(Arc<AskingModel>);

impl Model for Loaded {
    fn instance(&self, _: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(InOrder(AskingInstance(Arc::clone(&self.0)))))
    }
}

impl Compute for AskingInstance {
    fn compute(&mut self, job: &mut Job, _: &mut Times) -> Result<(), Status> {
        let AskingModel { models, asks } = &*self.0;
        let inputs = job.inputs().to_vec();
        let answer = models.infer_one(asks, None, PATIENCE, |reply| Request::new(inputs, Vec::new(), reply))?;
        for output in answer.outputs {
            job.put_buffer(&output.name, output.datatype, output.shape, output.data);
        }
        Ok(())
    }
}

/// An engine with these models. Each asks the other one, or is an identity model if that is empty.
fn engine(models: &[(&str, &str)]) -> (Arc<Engine>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    for (name, asks) in models {
        std::fs::create_dir_all(folder.path().join(name).join("1")).unwrap();
        let backend = if asks.is_empty() { "identity" } else { "forwarding" };
        let config = format!(
            "backend: '{backend}' input [{{ name: 'IN' data_type: TYPE_UINT8 dims: [-1] }}]
             output [{{ name: 'OUT' data_type: TYPE_UINT8 dims: [-1] }}]
             parameters {{ key: 'asks' value {{ string_value: '{asks}' }} }}"
        );
        std::fs::write(folder.path().join(name).join("config.pbtxt"), config).unwrap();
    }
    let mut runtimes = Runtimes::default();
    runtimes.add(Arc::new(Identity));
    runtimes.add(Arc::new(Forwarding));
    let store =
        Store::open(StoreOptions { repositories: vec![folder.path().to_owned()], ..StoreOptions::default() }).unwrap();
    let loader = Loader {
        runtimes,
        host: HostFacts::cpu_only(),
        cores: 1,
        auto_complete: false,
        queues: QueueLimits::default(),
        services: nerite_engine::Services::default(),
        threads: 2,
    };
    let options = Options {
        control: ControlMode::None,
        load_models: Vec::new(),
        load_threads: 1,
        load_retries: 0,
        models_bytes_max: None,
    };
    let engine = Engine::new(store, loader, options);
    assert_eq!(engine.start().unwrap(), Vec::<String>::new());
    (engine, folder)
}

fn ask(engine: &Engine, model: &str, input: &str, outputs: &[&str]) -> Result<InferResponse, Status> {
    let (to, from) = mpsc::channel();
    let mut one = ExactlyOne::default();
    let reply = Reply::new(move |response| {
        if let Some(outcome) = one.take(response) {
            to.send(outcome).unwrap();
        }
    });
    let data = Buffer::from(b"here".to_vec());
    let input = Tensor { name: input.into(), datatype: DataType::Uint8, shape: Shape::from_slice(&[4]), data };
    let wanted = outputs.iter().map(|name| Wanted { name: (*name).into(), slot: None }).collect();
    engine.infer(model, None, Request::new(vec![input], wanted, reply));
    from.recv().unwrap().unwrap()
}

#[track_caller]
fn check(engine: &Engine, model: &str, expected: Result<&[u8], (Code, &str)>) {
    match (ask(engine, model, "IN", &[]), expected) {
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
    let text = |input: &str, outputs: &[&str]| ask(&engine, "leaf", input, outputs).unwrap_err().message;
    assert_eq!(text("X", &[]), "unexpected inference input 'X' for model 'leaf'");
    assert_eq!(text("IN", &["X"]), "unexpected inference output 'X' for model 'leaf'");
    assert_eq!(text("IN", &["OUT", "OUT"]), "[request id: <id_unknown>] output 'OUT' already exists in request");
    assert_eq!(ask(&engine, "absent", "IN", &[]).unwrap_err().code, Code::NotFound);
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
