//! Which server do the targets talk to that need a whole one?
#![forbid(unsafe_code)]

use std::fs;
use std::future::Future;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use nerite_api::{Api, LogSwitches};
use nerite_backend::identity::Identity;
use nerite_config::HostFacts;
use nerite_engine::{Engine, Loader, QueueLimits, Runtimes};
use nerite_repository::{ControlMode, Store, StoreOptions};
use nerite_request::setting::LogSettings;
use nerite_shm::Registries;
use tempfile::TempDir;
use tokio::io::{AsyncWriteExt, DuplexStream, copy, duplex, sink, split};
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// What an input may be or become, in bytes.
pub const INPUT_BYTES_MAX: u64 = 4 << 20;
/// What the stream between client and server holds.
const STREAM_BYTES: usize = 64 << 10;
/// A connection whose client has gone ends within this time, however slow the machine is.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

const ECHO: &str = r#"
    backend: "identity"
    input [{ name: "IN" data_type: TYPE_FP32 dims: [-1] }]
    output [{ name: "OUT" data_type: TYPE_FP32 dims: [-1] }]
"#;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the machine has a file to poll with")
});

static SERVER: LazyLock<(Api, TempDir)> = LazyLock::new(|| {
    let models = tempfile::tempdir().expect("a place for a model");
    fs::create_dir_all(models.path().join("echo/1")).expect("the place is ours");
    fs::write(models.path().join("echo/config.pbtxt"), ECHO).expect("the place is ours");
    let repositories = vec![models.path().to_owned()];
    let store = Store::open(StoreOptions { repositories, ..StoreOptions::default() }).expect("the repository is there");
    let mut runtimes = Runtimes::default();
    runtimes.add(Arc::new(Identity));
    let queues = QueueLimits::default();
    let loader = Loader {
        runtimes,
        host: HostFacts::cpu_only(),
        cores: 2,
        auto_complete: false,
        queues,
        services: nerite_engine::Services::default(),
        threads: 1,
    };
    let options = nerite_engine::Options {
        control: ControlMode::None,
        load_models: Vec::new(),
        load_threads: 1,
        load_retries: 0,
        models_bytes_max: None,
    };
    let engine = Engine::new(store, loader, options);
    assert_eq!(engine.start().expect("the model loads"), Vec::<String>::new());
    let regions = Registries::new(false, None);
    let rules = nerite_api::Options { http_input_bytes_max: INPUT_BYTES_MAX, ..nerite_api::Options::default() };
    (Api::new(engine, regions, Arc::new(LogSwitches::new(silence())), rules), models)
});

fn silence() -> LogSettings {
    let (file, format) = (String::new(), "default".to_owned());
    LogSettings { file, format, info: false, warning: false, error: false, verbose_level: 0 }
}

/// Runs `work` to its end.
pub fn run<T>(work: impl Future<Output = T>) -> T {
    RUNTIME.block_on(work)
}

/// Sends `bytes` to a connection that `serve` serves, takes whatever it answers, and waits until it has ended.
pub fn converse<F>(bytes: &[&[u8]], serve: impl FnOnce(Api, DuplexStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    run(async {
        let (ours, theirs) = duplex(STREAM_BYTES);
        let serving = tokio::spawn(serve(SERVER.0.clone(), theirs));
        let (mut from, mut to) = split(ours);
        let listening = tokio::spawn(async move { copy(&mut from, &mut sink()).await });
        for part in bytes {
            // A server that has heard enough does not listen any more.
            if to.write_all(part).await.is_err() {
                break;
            }
        }
        let _ = to.shutdown().await;
        let ended = timeout(ENDS_WITHIN, serving).await;
        ended.expect("a connection ends with its client").expect("a connection does not panic");
        listening.abort();
    });
}
