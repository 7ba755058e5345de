//! How does the demo's server start and end?

use std::collections::VecDeque;
use std::io;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nerite_client::http;
use nerite_locks::Mutex;

use super::batches::write_models;
use super::show::Waiting;
use super::{DemoError, DemoOptions, pipeline};

const READY_MAX: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long a server that was told to stop may take before it is killed.
const STOP_MAX: Duration = Duration::from_secs(2);
/// How often the server is started, if other programs take its ports before it does.
const STARTS_MAX: usize = 5;
/// How long the last lines of a server that has ended may take to come.
const LAST_LINES_MAX: Duration = Duration::from_secs(1);
/// Lines of the server's log that are kept for the case that it fails.
const LOG_LINES_MAX: usize = 20;
/// The session socket, in a folder of its own.
const SOCKET: &str = "session.sock";

/// A server process that ends with this value.
pub(super) struct Server {
    child: Child,
    ports: [u16; 3],
    log: Arc<Mutex<VecDeque<String>>>,
    /// The threads that read its log.
    readers: Vec<JoinHandle<()>>,
    has_pipeline: bool,
    /// What the demo adds to the examples' models; removed with this value.
    _added: tempfile::TempDir,
    /// The folder of the session socket; removed with this value.
    socket_folder: tempfile::TempDir,
}

impl Server {
    /// Runs this very program as a server on free ports: over `examples/models`, a copy of its net that runs requests one by one, and
    /// `examples/pipeline` where there is a Python for it. Returns when it is ready.
    pub(super) async fn start(examples: &Path) -> Result<Server, DemoError> {
        Server::start_on(&std::env::current_exe().map_err(not_started)?, examples, free_ports).await
    }

    /// The same with `program` on the ports that `pick` returns. It picks other ports if another program took one of them before the server did.
    async fn start_on(
        program: &Path,
        examples: &Path,
        mut pick: impl FnMut() -> io::Result<[u16; 3]>,
    ) -> Result<Server, DemoError> {
        let mut starts = 1;
        loop {
            let mut server = Server::spawn(program, examples, pick().map_err(not_started)?)?;
            match server.until_ready().await {
                Err(fault) if starts < STARTS_MAX && is_port_taken(&fault) => starts += 1,
                ready => return ready.map(|()| server),
            }
        }
    }

    fn spawn(program: &Path, examples: &Path, ports: [u16; 3]) -> Result<Server, DemoError> {
        let fault = not_started;
        let [http, grpc, metrics] = ports.map(|port| port.to_string());
        let added = tempfile::tempdir().map_err(fault)?;
        write_models(added.path()).map_err(fault)?;
        let socket_folder = tempfile::tempdir().map_err(fault)?;
        let pipeline = pipeline::find(examples);
        let mut command = Command::new(program);
        command
            .arg("serve")
            .arg("--model-repository")
            .arg(examples.join("models"))
            .arg("--model-repository")
            .arg(added.path())
            .args(["--http-port", &http, "--grpc-port", &grpc, "--metrics-port", &metrics, "--allow-metrics=true"])
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
        let readers = [drain(child.stdout.take(), &log), drain(child.stderr.take(), &log)];
        let readers = readers.into_iter().flatten().collect();
        Ok(Server { child, ports, log, readers, has_pipeline: pipeline.is_some(), _added: added, socket_folder })
    }

    /// Where its client finds it.
    pub(super) fn options(&self, examples_dir: PathBuf) -> DemoOptions {
        let [http_url, grpc_url, metrics_url] = self.ports.map(|port| format!("http://127.0.0.1:{port}"));
        let session_socket = self.socket();
        DemoOptions { http_url, grpc_url, metrics_url, session_socket, examples_dir, has_pipeline: self.has_pipeline }
    }

    /// Returns when the server says that it is ready; fails when it ends before, or takes too long.
    async fn until_ready(&mut self) -> Result<(), DemoError> {
        let client = http::Client::new(&format!("http://127.0.0.1:{}", self.ports[0]))?;
        let (since, waiting) = (Instant::now(), Waiting::new("starting the server"));
        loop {
            // Its session socket is there once it has all its ports. Before that, another server may be the one that answers.
            if self.socket().exists() && matches!(client.is_ready().await, Ok(true)) {
                return Ok(());
            }
            if let Some(status) = self.exited()? {
                self.until_log_ends().await;
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

    fn socket(&self) -> PathBuf {
        self.socket_folder.path().join(SOCKET)
    }

    /// Returns when the log of a server that has ended was read, or when that takes too long: a process that it started may hold the pipe.
    async fn until_log_ends(&self) {
        let since = Instant::now();
        while !self.readers.iter().all(JoinHandle::is_finished) && since.elapsed() < LAST_LINES_MAX {
            tokio::time::sleep(LOOK_EVERY).await;
        }
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
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn not_started(reason: io::Error) -> DemoError {
    DemoError::System { what: "cannot start the server", reason }
}

/// Whether the server ended because somebody else listens on one of its ports.
fn is_port_taken(fault: &DemoError) -> bool {
    matches!(fault, DemoError::Server { log, .. } if log.contains("already in use"))
}

/// Three ports on which no process listens. Another program may take one before the server does. Then the server reports that and ends.
fn free_ports() -> io::Result<[u16; 3]> {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0"));
    let mut ports = [0; 3];
    for (port, listener) in ports.iter_mut().zip(listeners) {
        *port = listener?.local_addr()?.port();
    }
    Ok(ports)
}

/// Reads the log until it ends, and keeps its last lines. So the pipe never fills up, and the server never waits for a reader.
#[expect(clippy::disallowed_methods, reason = "without a thread the demo ends")]
fn drain(from: Option<impl Read + Send + 'static>, log: &Arc<Mutex<VecDeque<String>>>) -> Option<JoinHandle<()>> {
    let (from, log) = (from?, Arc::clone(log));
    Some(std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let mut lines = log.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() == LOG_LINES_MAX {
                lines.pop_front();
            }
            lines.push_back(line);
        }
    }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn free_ports_differ() {
        let [a, b, c] = free_ports().expect("a loopback interface");
        assert!(a != b && b != c && a != c);
    }

    /// A stand-in for the server: the first `failures` times it ends with this line.
    fn program(folder: &Path, failures: usize, line: &str) -> PathBuf {
        let (path, count) = (folder.join("program"), folder.join("starts").display().to_string());
        let text = format!(
            "#!/bin/sh\necho >> {count}\nif [ $(wc -l < {count}) -le {failures} ]; then echo \"{line}\" >&2; exit 1; fi\n\
             while [ \"$1\" != --session-socket ]; do shift; done\ntouch \"$2\"\nexec sleep 1000\n"
        );
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Answers each connection that it is ready. Ends with the test's process.
    #[expect(clippy::disallowed_methods, reason = "it answers while the test waits")]
    fn ready_port() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            }
        });
        port
    }

    /// Another server answers at the port all the time. `starts` are expected.
    #[track_caller]
    fn check(failures: usize, line: &str, starts: usize, is_ready: bool) {
        let (folder, port) = (tempfile::tempdir().unwrap(), ready_port());
        let program = program(folder.path(), failures, line);
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (mut picked, starts_file) = (0, folder.path().join("starts"));
        let server = loop {
            let pick = || {
                picked += 1;
                Ok([port, 1, 2])
            };
            let server = runtime.block_on(Server::start_on(&program, &examples, pick));
            // A process that another test starts may have the program open for writing until it executes its own program.
            let is_busy = |reason: &io::Error| reason.kind() == io::ErrorKind::ExecutableFileBusy;
            if !matches!(&server, Err(DemoError::System { reason, .. }) if is_busy(reason)) {
                break server;
            }
            picked = 0;
            let _ = std::fs::remove_file(&starts_file);
        };
        assert_eq!(server.as_ref().is_ok(), is_ready, "{:?}", server.as_ref().err());
        if let Err(fault) = &server {
            assert!(fault.to_string().contains(line), "{fault}");
        }
        let started = std::fs::read_to_string(&starts_file).unwrap().lines().count();
        assert_eq!((picked, started), (starts, starts));
    }

    #[test]
    fn other_ports_are_tried_if_somebody_took_one() {
        let taken = "error: failed to start HTTP service: Unavailable - Socket '127.0.0.1:1' already in use ";
        check(0, taken, 1, true);
        check(2, taken, 3, true);
        check(STARTS_MAX, taken, STARTS_MAX, false);
        check(1, "error: no models", 1, false);
    }
}
