//! Which server do the tests use?

use std::fs;
use std::sync::Arc;

use nerite_api::{Api, LogSwitches};
use nerite_backend::identity::Identity;
use nerite_engine::{Engine, Runtimes};
use nerite_grpc::{Handle, Options, serve};
use nerite_listen::{ConnectionLimits, ConnectionRules, Endpoint, Listener, Peers, TimeLimits, bind};
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
        let (options, rules) = (Options::default(), nerite_api::Options::default());
        TestServer::make(bind(&port).unwrap(), options, rules, times, Registries::new(true, None))
    }

    /// A server with a user directory of the test's.
    pub fn with_user_directory(look_up: fn(u32) -> Vec<u32>) -> TestServer {
        let port = Endpoint::Tcp { address: "127.0.0.1".into(), port: 0, reuse_port: false };
        let (options, rules) = (Options::default(), nerite_api::Options::default());
        let regions = Registries::with_user_directory(true, look_up);
        TestServer::make(bind(&port).unwrap(), options, rules, TimeLimits::default(), regions)
    }

    pub fn behind(listener: Listener, options: Options, rules: nerite_api::Options) -> TestServer {
        TestServer::make(listener, options, rules, TimeLimits::default(), Registries::new(true, None))
    }

    fn make(
        listener: Listener,
        options: Options,
        rules: nerite_api::Options,
        times: TimeLimits,
        regions: Registries<nerite_request::Peer>,
    ) -> TestServer {
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
        let engine = Engine::for_tests(models.path(), runtimes).unwrap();
        let api = Api::new(engine, regions, LogSwitches::silent(), rules);
        let address = listener.address();
        let peers = Peers::new(ConnectionLimits::for_descriptors(1024));
        let handle = serve(api.clone(), options, ConnectionRules { peers, times }, vec![listener]).unwrap();
        TestServer { handle, api, held, address, _models: models }
    }

    pub async fn peer(&self) -> Peer {
        Peer::over(TcpStream::connect(self.address.unwrap()).await.unwrap()).await
    }
}
