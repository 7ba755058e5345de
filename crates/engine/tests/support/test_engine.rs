//! How does a test get an engine with models of its own?
#![allow(dead_code, clippy::unwrap_used)]

use std::path::Path;
use std::sync::{Arc, mpsc};

use nerite_backend::identity::Identity;
use nerite_backend::{Compute, InOrder, Instance, InstanceSpec, LoadContext, Model, Runtime};
use nerite_engine::{Engine, Loader, Options, Runtimes, Services};
use nerite_memory::Buffer;
use nerite_repository::{Store, StoreOptions};
use nerite_request::{ExactlyOne, InferResponse, Recycled, Reply, Status};
use nerite_tensor::{DataType, Shape, Tensor};
use tempfile::TempDir;

/// The answer to a request that wants one response.
pub type Answer = Result<Recycled<InferResponse>, Status>;

/// Loads ensembles. Their requests are not run here.
pub struct Ensembles;

impl Runtime for Ensembles {
    fn name(&self) -> &'static str {
        "ensemble"
    }

    fn engine(&self) -> String {
        "none".to_owned()
    }

    fn load(&self, context: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        Identity.load(context)
    }
}

/// The settings of a test's engine: one core, loads one at a time, no limits.
pub struct Setup {
    pub runtimes: Runtimes,
    pub services: Services,
    pub options: Options,
    /// Whether the same name may stand for a model of each repository.
    pub namespacing: bool,
    repository: TempDir,
}

impl Setup {
    /// An engine without models, with these runtimes.
    pub fn new(runtimes: impl IntoIterator<Item = Arc<dyn Runtime>>) -> Setup {
        let mut all = Runtimes::default();
        runtimes.into_iter().for_each(|runtime| all.add(runtime));
        let (services, repository) = (Services::default(), tempfile::tempdir().unwrap());
        Setup { runtimes: all, services, options: Options::for_tests(), namespacing: false, repository }
    }

    /// The repository.
    pub fn path(&self) -> &Path {
        self.repository.path()
    }

    /// Adds a model with this configuration. Returns the directory of its version 1.
    pub fn put(&self, model: &str, config: &str) -> std::path::PathBuf {
        let version = self.path().join(model).join("1");
        std::fs::create_dir_all(&version).unwrap();
        std::fs::write(self.path().join(model).join("config.pbtxt"), config).unwrap();
        version
    }

    /// An engine with the model `m` of this configuration.
    pub fn with_model(self, config: &str) -> Setup {
        self.put("m", config);
        self
    }

    /// The engine, and the directory of its repository. All models that are loaded at the start must load.
    pub fn start(self) -> (Arc<Engine>, TempDir) {
        let (engine, failed, repository) = self.try_start();
        assert_eq!(failed, Vec::<String>::new());
        (engine, repository)
    }

    /// As [`Setup::start`], with the models that failed to load.
    pub fn try_start(self) -> (Arc<Engine>, Vec<String>, TempDir) {
        let Setup { runtimes, services, options, namespacing, repository } = self;
        let repositories = vec![repository.path().to_owned()];
        let store =
            Store::open(StoreOptions { repositories, namespacing, allow_upload: true, ..StoreOptions::default() })
                .unwrap();
        let loader = Loader { cores: 1, services, ..Loader::for_tests(runtimes) };
        let engine = Engine::new(store, loader, options);
        let failed = engine.start().unwrap();
        (engine, failed, repository)
    }
}

/// The configuration of a model of this backend with an input IN and an output OUT of any number of bytes, and `more`.
pub fn bytes_model(backend: &str, more: &str) -> String {
    format!(
        "backend: '{backend}' input [{{ name: 'IN' data_type: TYPE_UINT8 dims: [-1] }}]
         output [{{ name: 'OUT' data_type: TYPE_UINT8 dims: [-1] }}] {more}"
    )
}

/// The tensor IN with these bytes.
pub fn input(data: Buffer) -> Tensor {
    let shape = Shape::from_slice(&[data.len() as i64]);
    Tensor { name: "IN".into(), datatype: DataType::Uint8, shape, data }
}

/// A reply of which the only response is received.
pub fn one_reply() -> (Reply, mpsc::Receiver<Answer>) {
    let (to, from) = mpsc::channel();
    let mut one = ExactlyOne::default();
    let reply = Reply::new(move |response| {
        if let Some(outcome) = one.take(response) {
            to.send(outcome.unwrap()).unwrap();
        }
    });
    (reply, from)
}

/// A runtime of this name. Its models compute by what the function makes for each instance.
#[derive(Clone)]
pub struct Computing<F>(pub &'static str, pub F);

impl<F: Fn() -> C + Clone + Send + Sync + 'static, C: Compute + 'static> Runtime for Computing<F> {
    fn name(&self) -> &str {
        self.0
    }

    fn engine(&self) -> String {
        "a test".into()
    }

    fn load(&self, _: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        Ok(Arc::new(self.clone()))
    }
}

impl<F: Fn() -> C + Clone + Send + Sync + 'static, C: Compute + 'static> Model for Computing<F> {
    fn instance(&self, _: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(InOrder((self.1)())))
    }
}
