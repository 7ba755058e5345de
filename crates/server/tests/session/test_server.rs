//! Which server do the tests of sessions talk to?
#![allow(dead_code)]

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use nerite_api::{Api, LogSwitches};
use nerite_backend::identity::Identity;
use nerite_backend::{
    Batch, Compute, InOrder, Instance, InstanceSpec, Job, LoadContext, Model, Responder, Runtime, Times,
};
use nerite_budget::Budgets;
use nerite_client::{ClientOptions, DataType, grpc, http};
use nerite_engine::{Engine, Loader, Runtimes};
use nerite_listen::{ConnectionLimits, ConnectionRules, Endpoint, Peers, TimeLimits, bind};
use nerite_repository::{ControlMode, Store, StoreOptions};
use nerite_request::Status;
use nerite_session::{Handle, Listener, Options, serve};
use nerite_shm::{LeaseLimits, Pools, Registries};
use tempfile::TempDir;

/// A server in this process with the models `simple` (sum and difference of INT32[16]), `echo` (IN to OUT, any INT32 vector),
/// `apart` (the same, its output in memory of its own), `held` (the same, answered when a test says so), `words` (BYTES) and `several` (decoupled: a response for
/// each number of IN, with that many times that number; a negative one is an error).
pub struct TestServer {
    pub api: Api,
    pub handle: Handle,
    pub pools: Arc<Pools>,
    pub held: Held,
    pub late: Late,
    pub socket: PathBuf,
    models: TempDir,
}

const SIMPLE: &str = r#"
    backend: "add_sub" max_batch_size: 8
    input [{ name: "INPUT0" data_type: TYPE_INT32 dims: [16] }, { name: "INPUT1" data_type: TYPE_INT32 dims: [16] }]
    output [{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [16] }, { name: "OUTPUT1" data_type: TYPE_INT32 dims: [16] }]
"#;
const VECTOR: &str = r#"
    input [{ name: "IN" data_type: TYPE_INT32 dims: [-1] }]
    output [{ name: "OUT" data_type: TYPE_INT32 dims: [-1] }]
    instance_group [{ count: 4 kind: KIND_CPU }]
"#;
const WORDS: &str = r#"
    backend: "identity"
    input [{ name: "IN" data_type: TYPE_STRING dims: [-1] }] output [{ name: "OUT" data_type: TYPE_STRING dims: [-1] }]
"#;

impl TestServer {
    /// Lends up to 64 MiB, 16 MiB to each session.
    pub fn new() -> TestServer {
        TestServer::with(
            LeaseLimits { bytes_max: 64 << 20, session_bytes_max: 16 << 20 },
            nerite_api::Options::default(),
        )
    }

    pub fn with(limits: LeaseLimits, options: nerite_api::Options) -> TestServer {
        TestServer::started(limits, options, (ControlMode::None, Budgets::default()))
    }

    /// As [`TestServer::new`], with models that can be loaded and unloaded.
    pub fn explicit() -> TestServer {
        TestServer::explicit_with(nerite_api::Options::default())
    }

    /// As [`TestServer::explicit`], with options. Only `echo` is loaded.
    pub fn explicit_with(options: nerite_api::Options) -> TestServer {
        let limits = LeaseLimits { bytes_max: 64 << 20, session_bytes_max: 16 << 20 };
        TestServer::started(limits, options, (ControlMode::Explicit, Budgets::default()))
    }

    /// As [`TestServer::new`], with models that requests load, and one more, `late`, which is loaded once a test says so.
    pub fn on_demand() -> TestServer {
        TestServer::on_demand_with(Budgets::default())
    }

    /// As [`TestServer::on_demand`], with budgets.
    pub fn on_demand_with(budgets: Budgets) -> TestServer {
        let limits = LeaseLimits { bytes_max: 64 << 20, session_bytes_max: 16 << 20 };
        let models = (ControlMode::Demand, budgets);
        TestServer::started(limits, nerite_api::Options::default(), models)
    }

    fn started(
        limits: LeaseLimits,
        options: nerite_api::Options,
        (control, budgets): (ControlMode, Budgets),
    ) -> TestServer {
        let models = tempfile::tempdir().unwrap();
        let vector = |backend: &str| format!("backend: \"{backend}\" {VECTOR}");
        let configs = [
            ("simple", SIMPLE.to_owned()),
            ("echo", vector("identity")),
            ("apart", vector("apart")),
            ("held", vector("held")),
            ("words", WORDS.to_owned()),
            ("several", vector("several") + "model_transaction_policy { decoupled: true }"),
        ];
        let late_config = (control == ControlMode::Demand).then(|| ("late", vector("late")));
        for (name, config) in configs.into_iter().chain(late_config) {
            fs::create_dir_all(models.path().join(name).join("1")).unwrap();
            fs::write(models.path().join(name).join("config.pbtxt"), config).unwrap();
        }
        let (held, late) = (Held::default(), Late::default());
        let mut runtimes = Runtimes::default();
        runtimes.add(Arc::new(Identity));
        runtimes.add(Arc::new(Each("add_sub", AddSub)));
        runtimes.add(Arc::new(Each("apart", Apart)));
        runtimes.add(Arc::new(held.clone()));
        runtimes.add(Arc::new(late.clone()));
        runtimes.add(Arc::new(Several));
        let pools = Pools::new(limits);
        let regions = Registries::new(true, None);
        let options = nerite_api::Options { id: "server".into(), http_input_bytes_max: 1 << 20, ..options };
        let api = Api::with_pools(
            engine(&models, runtimes, control, budgets),
            regions,
            Arc::clone(&pools),
            LogSwitches::silent(),
            options,
        );
        let socket = models.path().join("session.sock");
        let listener = Listener::bind(&socket, false).unwrap();
        let handle = serve(api.clone(), Options::default(), listener);
        TestServer { api, handle, pools, held, late, socket, models }
    }

    /// Changes the configuration of a model, which is to be loaded then.
    pub fn configure(&self, model: &str, before: &str, after: &str) {
        let path = self.models.path().join(model).join("config.pbtxt");
        let config = fs::read_to_string(&path).unwrap();
        assert!(config.contains(before), "{config}");
        fs::write(&path, config.replace(before, after)).unwrap();
    }

    /// Clients of the ordinary protocols, whose front ends it opens.
    pub fn clients(&self) -> (http::Client, grpc::Client) {
        self.clients_with(&ClientOptions::default())
    }

    /// As [`TestServer::clients`], with options.
    pub fn clients_with(&self, options: &ClientOptions) -> (http::Client, grpc::Client) {
        let place = |name: &str| self.socket.with_file_name(name);
        let open = |name: &str| vec![bind(&Endpoint::unix(&place(name))).unwrap()];
        let peers = Peers::new(ConnectionLimits::for_descriptors(1024));
        let rules = ConnectionRules { peers, times: TimeLimits::default() };
        nerite_http::serve(self.api.clone(), nerite_http::Options::default(), rules.clone(), open("http.sock"))
            .unwrap();
        nerite_grpc::serve(self.api.clone(), nerite_grpc::Options::default(), rules, open("grpc.sock")).unwrap();
        let at = |name: &str| format!("unix:{}", place(name).display());
        let http = http::Client::with_options(&at("http.sock"), options).unwrap();
        (http, grpc::Client::with_options(&at("grpc.sock"), options).unwrap())
    }

    /// Waits until `done` holds. How long that may take is no matter of these tests, only that it comes.
    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "a test looks again")]
    pub fn until(what: &str, done: impl Fn() -> bool) -> Duration {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_mins(1), "{what} never came");
            std::thread::sleep(Duration::from_millis(1));
        }
        start.elapsed()
    }
}

fn engine(models: &TempDir, runtimes: Runtimes, control: ControlMode, budgets: Budgets) -> Arc<Engine> {
    let repositories = vec![models.path().to_owned()];
    let store = Store::open(StoreOptions { repositories, ..StoreOptions::default() }).unwrap();
    let load_models = if control == ControlMode::Explicit { vec!["echo".to_owned()] } else { Vec::new() };
    let options = nerite_engine::Options { control, load_models, budgets, ..nerite_engine::Options::for_tests() };
    let engine = Engine::new(store, Loader::for_tests(runtimes), options);
    assert_eq!(engine.start().unwrap(), Vec::<String>::new());
    engine
}

/// A runtime whose models all compute the same.
struct Each<C>(&'static str, C);

impl<C: Compute + Clone + Sync + 'static> Runtime for Each<C> {
    fn name(&self) -> &'static str {
        self.0
    }

    fn engine(&self) -> String {
        "a test".into()
    }

    fn load(&self, _: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        Ok(Arc::new(Each(self.0, self.1.clone())))
    }
}

impl<C: Compute + Clone + Sync + 'static> Model for Each<C> {
    fn instance(&self, _: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(InOrder(self.1.clone())))
    }
}

#[derive(Clone)]
struct AddSub;

impl Compute for AddSub {
    fn compute(&mut self, job: &mut Job, _: &mut Times) -> Result<(), Status> {
        for (name, sign) in [("OUTPUT0", 1), ("OUTPUT1", -1)] {
            if !job.wants(name) {
                continue;
            }
            let shape = job.inputs()[0].shape.clone();
            let mut slot = job.output(name, DataType::Int32, &shape)?;
            let data = |job: &Job, name| job.input(name).unwrap().data.clone();
            let (left, right) = (data(job, "INPUT0"), data(job, "INPUT1"));
            let mut numbers = slot.cells_mut::<i32>().unwrap();
            let (left, right) = (left.cells::<i32>().unwrap(), right.cells::<i32>().unwrap());
            numbers.fill_with(left.iter().zip(right.iter()).map(|(left, right)| left + sign * right));
            job.put(name, DataType::Int32, shape, slot.filled());
        }
        Ok(())
    }
}

#[derive(Clone)]
struct Apart;

impl Compute for Apart {
    fn compute(&mut self, job: &mut Job, _: &mut Times) -> Result<(), Status> {
        let input = job.inputs()[0].clone();
        let data = input.data.to_private(nerite_memory::Reason::Model);
        job.put_buffer("OUT", input.datatype, input.shape, data);
        Ok(())
    }
}

/// Jobs of the model `held`, which are answered when a test says so.
#[derive(Clone, Default)]
pub struct Held(Arc<(Mutex<Vec<Job>>, Condvar)>);

impl Held {
    /// How many are held.
    pub fn count(&self) -> usize {
        self.0.0.lock().unwrap().len()
    }

    /// How many of them nobody waits for any more.
    pub fn cancelled(&self) -> usize {
        self.0.0.lock().unwrap().iter().filter(|job| job.is_cancelled()).count()
    }

    /// Answers all with what their inputs hold now.
    pub fn answer(&self) {
        for mut job in std::mem::take(&mut *self.0.0.lock().unwrap()) {
            let input = job.inputs()[0].clone();
            let result = job.output_bytes("OUT", input.data.len()).map(|mut slot| {
                slot.fill_from(0, &input.data, nerite_memory::Reason::Model).unwrap();
                job.put("OUT", input.datatype, input.shape, slot.filled());
            });
            job.finish(result, Times::begin());
        }
    }
}

impl Runtime for Held {
    fn name(&self) -> &'static str {
        "held"
    }

    fn engine(&self) -> String {
        "a test".into()
    }

    fn load(&self, _: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        Ok(Arc::new(self.clone()))
    }
}

impl Model for Held {
    fn instance(&self, _: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(self.clone()))
    }
}

impl Instance for Held {
    fn run(&mut self, batch: Batch) {
        self.0.0.lock().unwrap().extend(batch.jobs);
        self.0.1.notify_all();
    }
}

/// The load of the model `late`, which does what `apart` does.
#[derive(Clone, Default)]
pub struct Late(Arc<(Mutex<bool>, Condvar)>);

impl Late {
    /// It may end.
    pub fn let_load(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

impl Runtime for Late {
    fn name(&self) -> &'static str {
        "late"
    }

    fn engine(&self) -> String {
        "a test".into()
    }

    fn load(&self, _: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        let may_load = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(may_load, |may_load| !*may_load).unwrap());
        Ok(Arc::new(Each("late", Apart)))
    }
}

/// A response for each number.
struct Several;

impl Runtime for Several {
    fn name(&self) -> &'static str {
        "several"
    }

    fn engine(&self) -> String {
        "a test".into()
    }

    fn load(&self, _: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        Ok(Arc::new(Several))
    }
}

impl Model for Several {
    fn instance(&self, _: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(Several))
    }
}

impl Instance for Several {
    fn run(&mut self, batch: Batch) {
        for job in batch.jobs {
            let times = job.begin();
            let (inputs, mut responder) = job.divide();
            // What came in a message lies where it happens to.
            for number in inputs[0].data.clone().aligned(4).numbers::<i32>().unwrap() {
                Several::respond(*number, &mut responder);
            }
            responder.end(times);
        }
    }
}

impl Several {
    fn respond(number: i32, responder: &mut Responder) {
        let Ok(count) = usize::try_from(number) else {
            return responder.send_error(Status::invalid("a negative number"));
        };
        let shape = [count as i64];
        let mut slot = responder.output("OUT", DataType::Int32, &shape).unwrap();
        slot.cells_mut::<i32>().unwrap().fill(number);
        responder.put("OUT", DataType::Int32, nerite_tensor::Shape::from_slice(&shape), slot.filled());
        responder.send().unwrap();
    }
}
