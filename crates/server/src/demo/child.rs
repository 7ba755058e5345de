//! How does the demo's server start and end?

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nerite_client::http;

use super::batches::write_alone;
use super::show::Waiting;
use super::{DemoError, DemoOptions, pipeline};

const READY_MAX: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long a server that was told to stop may take before it is killed.
const STOP_MAX: Duration = Duration::from_secs(2);
/// Lines of the server's log that are kept for the case that it fails.
const LOG_LINES_MAX: usize = 20;
/// The session socket, in a folder of its own.
const SOCKET: &str = "session.sock";

/// A server process that ends with this value.
pub(super) struct Server {
    child: Child,
    ports: [u16; 3],
    log: Arc<Mutex<VecDeque<String>>>,
    has_pipeline: bool,
    /// What the demo adds to the examples' models; removed with this value.
    _added: tempfile::TempDir,
    /// The folder of the session socket; removed with this value.
    socket_folder: tempfile::TempDir,
}

impl Server {
    /// Runs this very program as a server on ports that are free now: over `examples/models`, a copy of its net that runs requests one by
    /// one, and `examples/pipeline` where there is a Python for it.
    pub(super) fn start(examples: &Path) -> Result<Server, DemoError> {
        let fault = |reason| DemoError::System { what: "cannot start the server", reason };
        let ports = free_ports().map_err(fault)?;
        let [http, grpc, metrics] = ports.map(|port| port.to_string());
        let added = tempfile::tempdir().map_err(fault)?;
        write_alone(&examples.join("models"), added.path()).map_err(fault)?;
        let socket_folder = tempfile::tempdir().map_err(fault)?;
        let pipeline = pipeline::find(examples);
        let mut command = Command::new(std::env::current_exe().map_err(fault)?);
        command
            .arg("serve")
            .arg("--model-repository")
            .arg(examples.join("models"))
            .arg("--model-repository")
            .arg(added.path())
            .args(["--http-port", &http, "--grpc-port", &grpc, "--metrics-port", &metrics])
            .arg("--session-socket")
            .arg(socket_folder.path().join(SOCKET))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(folder) = &pipeline {
            command.arg("--model-repository").arg(folder);
        }
        let mut child = command.spawn().map_err(fault)?;
        let log = Arc::new(Mutex::new(VecDeque::new()));
        drain(child.stdout.take(), &log);
        drain(child.stderr.take(), &log);
        Ok(Server { child, ports, log, has_pipeline: pipeline.is_some(), _added: added, socket_folder })
    }

    /// Where its client finds it.
    pub(super) fn options(&self, examples_dir: PathBuf) -> DemoOptions {
        let [http_url, grpc_url, metrics_url] = self.ports.map(|port| format!("http://127.0.0.1:{port}"));
        let session_socket = self.socket_folder.path().join(SOCKET);
        DemoOptions { http_url, grpc_url, metrics_url, session_socket, examples_dir, has_pipeline: self.has_pipeline }
    }

    /// Returns when the server says that it is ready; fails when it ends before, or takes too long.
    pub(super) async fn until_ready(&mut self) -> Result<(), DemoError> {
        let client = http::Client::new(&format!("http://127.0.0.1:{}", self.ports[0]))?;
        let (since, waiting) = (Instant::now(), Waiting::new("starting the server"));
        loop {
            if let Ok(true) = client.is_ready().await {
                return Ok(());
            }
            if let Some(status) = self.exited()? {
                return Err(self.failed(format!("it ended with {status}")));
            }
            if since.elapsed() > READY_MAX {
                return Err(self.failed(format!("not within {} s", READY_MAX.as_secs())));
            }
            waiting.tick();
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Returns when the server has ended by itself.
    pub(super) async fn until_gone(&mut self) -> Result<(), DemoError> {
        while self.exited()?.is_none() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    fn exited(&mut self) -> Result<Option<std::process::ExitStatus>, DemoError> {
        self.child.try_wait().map_err(|reason| DemoError::System { what: "cannot watch the server", reason })
    }

    fn failed(&self, reason: String) -> DemoError {
        let lines = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        DemoError::Server { reason, log: lines.iter().cloned().collect::<Vec<_>>().join("\n") }
    }
}

impl Drop for Server {
    #[expect(clippy::disallowed_methods, reason = "the demo has nothing else to do")]
    fn drop(&mut self) {
        // After a Ctrl-C at a terminal the server is stopping already; give it the time to do so in order.
        let since = Instant::now();
        while std::io::IsTerminal::is_terminal(&std::io::stdin()) && since.elapsed() < STOP_MAX {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        // Both fail only for a process that is gone, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Three ports nobody listens on. Somebody else may take one before the server does; then it says so and ends.
fn free_ports() -> std::io::Result<[u16; 3]> {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0"));
    let mut ports = [0; 3];
    for (port, listener) in ports.iter_mut().zip(listeners) {
        *port = listener?.local_addr()?.port();
    }
    Ok(ports)
}

/// Keeps the last lines and the pipe empty, so that the server never waits for its log to be read.
#[expect(clippy::disallowed_methods, reason = "without a thread the demo ends")]
fn drain(from: Option<impl Read + Send + 'static>, log: &Arc<Mutex<VecDeque<String>>>) {
    let (Some(from), log) = (from, Arc::clone(log)) else { return };
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let mut lines = log.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() == LOG_LINES_MAX {
                lines.pop_front();
            }
            lines.push_back(line);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_differ() {
        let [a, b, c] = free_ports().expect("a loopback interface");
        assert!(a != b && b != c && a != c);
    }
}
