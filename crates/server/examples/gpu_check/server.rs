//! Which server is checked?

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nerite_client::{grpc, http};
use tempfile::TempDir;

const MODEL: &str = r#"
backend: "identity"
input [{ name: "IN" data_type: TYPE_UINT8 dims: [-1] }]
output [{ name: "OUT" data_type: TYPE_UINT8 dims: [-1] }]
"#;

/// A server in a process of its own, with one model that computes on the host: `echo`, IN to OUT.
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
    /// Starts `nerite`, with `library` as its CUDA driver, and waits until it is ready.
    pub async fn start(nerite: &Path, library: Option<&Path>) -> Result<Server, String> {
        let models = tempfile::tempdir().map_err(|error| error.to_string())?;
        let folder = models.path().join("echo");
        std::fs::create_dir_all(folder.join("1")).map_err(|error| error.to_string())?;
        std::fs::write(folder.join("config.pbtxt"), MODEL).map_err(|error| error.to_string())?;
        let [http, grpc, metrics] = [free_port()?, free_port()?, free_port()?].map(|port| port.to_string());
        let mut command = Command::new(nerite);
        command.args(["serve", "--session-socket", "off", "--onnxruntime-library", "none", "--model-repository"]);
        command.arg(models.path()).args(["--http-port", &http, "--grpc-port", &grpc, "--metrics-port", &metrics]);
        if let Some(library) = library {
            command.arg("--cuda-library").arg(library);
        }
        let child = command.stdout(Stdio::null()).spawn();
        let child = child.map_err(|error| format!("cannot start {}: {error}", nerite.display()))?;
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

    /// A metric's value, by its name with labels.
    pub async fn metric(&self, name: &str) -> Result<u64, String> {
        let page = self.metrics.page("/metrics").await.map_err(|error| error.to_string())?;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.ok_or_else(|| format!("no metric {name}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself, which a check has told by then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> Result<u16, String> {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr());
    free.map(|address| address.port()).map_err(|error| error.to_string())
}
