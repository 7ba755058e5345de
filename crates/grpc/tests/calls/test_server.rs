//! Which server do the tests use?

use std::fs;
use std::sync::Arc;

use nerite_api::{Api, LogSwitches};
use nerite_backend::identity::Identity;
use nerite_config::HostFacts;
use nerite_engine::{Engine, Loader, QueueLimits, Runtimes};
use nerite_grpc::{Handle, Options, serve};
use nerite_listen::{ConnectionLimits, Endpoint, Listener, Peers, Rules, TimeLimits, bind};
use nerite_repository::{ControlMode, Store, StoreOptions};
use nerite_request::setting::LogSettings;
use nerite_shm::Registries;
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::peer::Peer;
use crate::runtimes::{Held, Repeat};

/// A server with the models `echo`, `held` and `repeat`, each from one FP32 vector IN to one OUT.
pub struct TestServer {
    pub api: Api,
    pub handle: Handle,
    pub held: Held,
    pub address: Option<std::net::SocketAddr>,
    _models: TempDir,
}

/// The most bytes that a compressed message may inflate to.
pub const INPUT_BYTES_MAX: u64 = 12 << 20;

const SIGNATURE: &str = r#"
    input [{ name: "IN" data_type: TYPE_FP32 dims: [-1] }]
    output [{ name: "OUT" data_type: TYPE_FP32 dims: [-1] }]
    instance_group [{ count: 4 kind: KIND_CPU }]
"#;

impl TestServer {
    pub fn new() -> TestServer {
        TestServer::with(Options::default(), nerite_api::Options::default())
    }

    pub fn with(options: Options, rules: nerite_api::Options) -> TestServer {
        let port = Endpoint::Tcp { address: "127.0.0.1".into(), port: 0, reuse_port: false };
        TestServer::behind(bind(&port).unwrap(), options, rules)
    }

    /// A server with these time limits for clients.
    pub fn limited(times: TimeLimits) -> TestServer {
        let port = Endpoint::Tcp { address: "127.0.0.1".into(), port: 0, reuse_port: false };
        TestServer::make(bind(&port).unwrap(), Options::default(), nerite_api::Options::default(), times)
    }

    pub fn behind(listener: Listener, options: Options, rules: nerite_api::Options) -> TestServer {
        TestServer::make(listener, options, rules, TimeLimits::default())
    }

    fn make(listener: Listener, options: Options, rules: nerite_api::Options, times: TimeLimits) -> TestServer {
        let rules = nerite_api::Options { http_input_bytes_max: INPUT_BYTES_MAX, ..rules };
        let models = tempfile::tempdir().unwrap();
        let decoupled = "model_transaction_policy { decoupled: true }";
        for (name, backend, more) in [("echo", "identity", ""), ("held", "held", ""), ("repeat", "repeat", decoupled)] {
            let folder = models.path().join(name);
            fs::create_dir_all(folder.join("1")).unwrap();
            fs::write(folder.join("config.pbtxt"), format!("backend: \"{backend}\" {SIGNATURE} {more}")).unwrap();
        }
        let held = Held::default();
        let mut runtimes = Runtimes::default();
        runtimes.add(Arc::new(Identity));
        runtimes.add(Arc::new(held.clone()));
        runtimes.add(Arc::new(Repeat));
        let api = Api::new(engine(&models, runtimes), Registries::new(true, None), log(), rules);
        let address = listener.address();
        let peers = Peers::new(ConnectionLimits::for_descriptors(1024));
        let handle = serve(api.clone(), options, Rules { peers, times }, vec![listener]).unwrap();
        TestServer { handle, api, held, address, _models: models }
    }

    pub async fn peer(&self) -> Peer {
        Peer::over(TcpStream::connect(self.address.unwrap()).await.unwrap()).await
    }
}

fn engine(models: &TempDir, runtimes: Runtimes) -> Arc<Engine> {
    let repositories = vec![models.path().to_owned()];
    let store = Store::open(StoreOptions { repositories, ..StoreOptions::default() }).unwrap();
    let loader = Loader {
        runtimes,
        host: HostFacts::cpu_only(),
        cores: 2,
        auto_complete: false,
        queues: QueueLimits::default(),
        services: nerite_engine::Services::default(),
        threads: 2,
    };
    let control = ControlMode::None;
    let options = nerite_engine::Options {
        control,
        load_models: Vec::new(),
        load_threads: 1,
        load_retries: 0,
        models_bytes_max: None,
    };
    let engine = Engine::new(store, loader, options);
    assert_eq!(engine.start().unwrap(), Vec::<String>::new());
    engine
}

fn log() -> Arc<LogSwitches> {
    let (file, format) = (String::new(), "default".to_owned());
    Arc::new(LogSwitches::new(LogSettings {
        file,
        format,
        info: false,
        warning: false,
        error: false,
        verbose_level: 0,
    }))
}
