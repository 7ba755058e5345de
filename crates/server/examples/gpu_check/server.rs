//! Which server is checked?

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nerite_client::{grpc, http};
use tempfile::TempDir;

use crate::checks::Plan;

const ECHO: &str = r#"
backend: "identity"
input [{ name: "IN" data_type: TYPE_UINT8 dims: [-1] }]
output [{ name: "OUT" data_type: TYPE_UINT8 dims: [-1] }]
"#;

/// Adds and subtracts two rows of sixteen numbers, on the first GPU: where the client's memory is.
const ADD: &str = r#"
backend: "onnxruntime"
max_batch_size: 8
instance_group [{ kind: KIND_GPU count: 2 gpus: [0] }]
"#;
/// The same graph. A batch begins as soon as two requests of eight rows wait, and not before in this check.
const ADD_BATCHED: &str = r#"
backend: "onnxruntime"
max_batch_size: 16
instance_group [{ kind: KIND_GPU count: 1 gpus: [0] }]
dynamic_batching { max_queue_delay_microseconds: 60000000 }
"#;
const ADD_GRAPH: &[u8] = include_bytes!("../../../../examples/models/simple/1/model.onnx");

/// A server in a process of its own. Loaded is a model that computes on the host: `echo`, IN to OUT. `add` and `add_batched` are there to be loaded
/// on the GPU: INPUT0 and INPUT1, INT32, to OUTPUT0, their sum, and OUTPUT1, their difference.
pub struct Server {
    /// HTTP.
    pub http: http::Client,
    /// gRPC.
    pub grpc: grpc::Client,
    metrics: http::Client,
    child: Child,
    _models: TempDir,
}

impl Server {
    /// Starts the server with the libraries of the plan, and `onnxruntime` for ONNX models, and waits until it is ready.
    pub async fn start(plan: &Plan, onnxruntime: Option<&Path>) -> Result<Server, String> {
        let models = write_models().map_err(|error| error.to_string())?;
        let [http, grpc, metrics] = [free_port()?, free_port()?, free_port()?].map(|port| port.to_string());
        let mut command = Command::new(&plan.nerite);
        command.args(["serve", "--session-socket", "off", "--model-control-mode", "explicit", "--load-model", "echo"]);
        command.arg("--onnxruntime-library").arg(onnxruntime.unwrap_or(Path::new("none")));
        command.arg("--model-repository").arg(models.path());
        command.args(["--http-port", &http, "--grpc-port", &grpc, "--metrics-port", &metrics]);
        if let Some(library) = &plan.library {
            command.arg("--cuda-library").arg(library);
        }
        if let Some(folder) = plan.nvml.as_deref().and_then(Path::parent) {
            command.env("LD_LIBRARY_PATH", folder);
        }
        let child = command.stdout(Stdio::null()).spawn();
        let child = child.map_err(|error| format!("cannot start {}: {error}", plan.nerite.display()))?;
        let address = |port: &str| format!("http://127.0.0.1:{port}");
        let client = |port: &str| http::Client::new(&address(port)).map_err(|error| error.to_string());
        let grpc = grpc::Client::new(&address(&grpc)).map_err(|error| error.to_string())?;
        let mut server = Server { http: client(&http)?, grpc, metrics: client(&metrics)?, child, _models: models };
        server.wait().await.map(|()| server)
    }

    async fn wait(&mut self) -> Result<(), String> {
        for _ in 0..6000 {
            if matches!(self.http.is_ready().await, Ok(true)) {
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("the server ended: {status}"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err("the server does not become ready".into())
    }

    /// Whether the process is there still.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Its open descriptors.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).map_or(0, Iterator::count)
    }

    /// Its mappings.
    pub fn mappings(&self) -> usize {
        std::fs::read_to_string(format!("/proc/{}/maps", self.child.id())).map_or(0, |maps| maps.lines().count())
    }

    /// The value of a metric that is a whole number, by its name with labels.
    pub async fn metric(&self, name: &str) -> Result<u64, String> {
        let value = self.sample(name).await?;
        value.parse().map_err(|_| format!("metric {name} is {value}"))
    }

    /// The sum of a family's whole numbers for one model.
    pub async fn metric_of(&self, family: &str, model: &str) -> Result<u64, String> {
        let page = self.metrics.page("/metrics").await.map_err(|error| error.to_string())?;
        let label = format!("model=\"{model}\"");
        let lines = page.lines().filter(|line| line.starts_with(family) && line.contains(&label));
        let values: Vec<u64> = lines.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
        if values.is_empty() { Err(format!("no metric {family} of {model}")) } else { Ok(values.iter().sum()) }
    }

    /// Waits until this many requests of the model wait for a run.
    pub async fn pending(&self, model: &str, count: u64) -> Result<(), String> {
        for _ in 0..3000 {
            if self.metric_of("nv_inference_pending_request_count", model).await? == count {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(format!("{count} requests of {model} do not wait"))
    }

    /// A metric's value, by its name with labels.
    pub async fn sample(&self, name: &str) -> Result<String, String> {
        let page = self.metrics.page("/metrics").await.map_err(|error| error.to_string())?;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map(str::to_owned).ok_or_else(|| format!("no metric {name}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself, which a check has told by then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write_models() -> std::io::Result<TempDir> {
    let models = tempfile::tempdir()?;
    for (name, config) in [("echo", ECHO), ("add", ADD), ("add_batched", ADD_BATCHED)] {
        std::fs::create_dir_all(models.path().join(name).join("1"))?;
        std::fs::write(models.path().join(name).join("config.pbtxt"), config)?;
    }
    for name in ["add", "add_batched"] {
        std::fs::write(models.path().join(name).join("1/model.onnx"), ADD_GRAPH)?;
    }
    Ok(models)
}

fn free_port() -> Result<u16, String> {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr());
    free.map(|address| address.port()).map_err(|error| error.to_string())
}
