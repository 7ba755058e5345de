//! Does a request's timeout end the request, in the queue and in its run, where the model's author asks for it?
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use nerite_backend::{Compute, InOrder, Instance, InstanceSpec, Job, LoadContext, Model, Runtime, Times};
use nerite_config::HostFacts;
use nerite_engine::{Engine, Loader, Options, QueueLimits, Runtimes, Services};
use nerite_memory::Buffer;
use nerite_repository::{ControlMode, Store, StoreOptions};
use nerite_request::{Code, ExactlyOne, InferResponse, Reply, Request, Status};
use nerite_tensor::{DataType, Shape, Tensor};
use tempfile::TempDir;

/// No test waits so long.
const LONG_US: u64 = 600_000_000;

/// A model that computes until nobody waits for it, or until the test says so. A request of no elements is answered at once.
#[derive(Clone, Default)]
struct Steps {
    running: Arc<AtomicUsize>,
    goes_on: Arc<AtomicBool>,
}

impl Runtime for Steps {
    fn name(&self) -> &'static str {
        "steps"
    }

    fn engine(&self) -> String {
        "a test".into()
    }

    fn load(&self, _: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        Ok(Arc::new(self.clone()))
    }
}

impl Model for Steps {
    fn instance(&self, _: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(InOrder(self.clone())))
    }
}

impl Compute for Steps {
    fn compute(&mut self, job: &mut Job, _: &mut Times) -> Result<(), Status> {
        self.running.fetch_add(1, Ordering::SeqCst);
        while !job.inputs()[0].data.is_empty() && !job.is_cancelled() && !self.goes_on.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        self.running.fetch_sub(1, Ordering::SeqCst);
        if job.is_cancelled() { Err(Status::internal("this step was the last")) } else { Ok(()) }
    }
}

struct Server {
    engine: Arc<Engine>,
    steps: Steps,
    _folder: TempDir,
}

fn server(parameters: &str) -> Server {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("m/1")).unwrap();
    let config = "backend: 'steps' input [{ name: 'IN' data_type: TYPE_UINT8 dims: [-1] }]
                  output [{ name: 'OUT' data_type: TYPE_UINT8 dims: [-1] }] instance_group [{ count: 1 kind: KIND_CPU }]";
    std::fs::write(folder.path().join("m/config.pbtxt"), format!("{config} {parameters}")).unwrap();
    let (steps, mut runtimes) = (Steps::default(), Runtimes::default());
    runtimes.add(Arc::new(steps.clone()));
    let repositories = vec![folder.path().to_owned()];
    let store = Store::open(StoreOptions { repositories, ..StoreOptions::default() }).unwrap();
    let loader = Loader {
        runtimes,
        host: HostFacts::cpu_only(),
        cores: 1,
        auto_complete: false,
        queues: QueueLimits::default(),
        services: Services::default(),
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
    Server { engine, steps, _folder: folder }
}

const OPTED_IN: &str = "parameters { key: 'nerite.timeout_ends_runs' value { string_value: 'true' } }";

type Answer = Result<InferResponse, Status>;

impl Server {
    fn begin(&self, elements: usize, timeout_us: u64) -> mpsc::Receiver<Answer> {
        let (to, from) = mpsc::channel();
        let mut one = ExactlyOne::default();
        let reply = Reply::new(move |response| {
            if let Some(outcome) = one.take(response) {
                to.send(outcome.unwrap()).unwrap();
            }
        });
        let data = Buffer::from_numbers(vec![7_u8; elements]);
        let shape = Shape::from_slice(&[elements as i64]);
        let input = Tensor { name: "IN".into(), datatype: DataType::Uint8, shape, data };
        let request = Request { timeout_us, ..Request::new(vec![input], Vec::new(), reply) };
        self.engine.admit("m", None).unwrap().ask(request);
        from
    }

    fn until_running(&self) {
        while self.steps.running.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
    }
}

#[track_caller]
fn check_late(answer: &mpsc::Receiver<Answer>) {
    let error = answer.recv_timeout(Duration::from_mins(1)).unwrap().unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (Code::Unavailable, "Request timeout expired"));
}

#[test]
fn a_run_ends_at_its_requests_time_and_the_instance_serves_the_next() {
    let server = server(OPTED_IN);
    let begun = Instant::now();
    let late = server.begin(1, 30_000);
    check_late(&late);
    assert!(begun.elapsed() >= Duration::from_millis(30));
    assert!(server.begin(0, LONG_US).recv().unwrap().is_ok());
    let served = server.engine.find("m", None).unwrap();
    // It was cancelled, and is not the backend's fault.
    assert_eq!(served.statistics().failures, [0, 1, 0, 0]);
}

#[test]
fn a_request_that_waits_is_refused_at_its_time_while_another_runs() {
    let server = server(OPTED_IN);
    let runs = server.begin(1, LONG_US);
    server.until_running();
    let (late, later) = (server.begin(0, 20_000), server.begin(0, 0));
    check_late(&late);
    assert!(runs.try_recv().is_err() && later.try_recv().is_err());
    server.steps.goes_on.store(true, Ordering::SeqCst);
    assert!(runs.recv().unwrap().is_ok() && later.recv().unwrap().is_ok());
}

#[test]
fn unless_the_author_asks_for_it_a_timeout_ends_no_run() {
    let server = server("");
    let runs = server.begin(1, 1000);
    assert!(runs.recv_timeout(Duration::from_millis(100)).is_err());
    server.steps.goes_on.store(true, Ordering::SeqCst);
    assert!(runs.recv().unwrap().is_ok());
}

#[test]
fn requests_that_end_in_time_are_not_touched() {
    let server = server(OPTED_IN);
    server.steps.goes_on.store(true, Ordering::SeqCst);
    for number in 0..1000 {
        assert!(server.begin(1, LONG_US - number).recv().unwrap().is_ok());
    }
}
