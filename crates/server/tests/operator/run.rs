//! How is `nerite` run, and what does it say?

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tokio::runtime::Runtime;

use crate::ports::free_ports;

pub const NOBODY: u32 = 65_534;

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub fn key(name: &str) -> String {
    format!("/nerite-operator-{}-{name}", std::process::id())
}

pub fn nerite(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nerite")).args(words).output().unwrap()
}

/// The program where every user can reach it, wherever it was built.
pub fn program_for_all() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("nerite");
    copy_program(Path::new(env!("CARGO_BIN_EXE_nerite")), &program);
    (directory, program)
}

/// Copies a program that is to be run at once. By another process: a descriptor open for writing here would go along with
/// whatever another test starts meanwhile, and the program could not be run until that has ended.
pub fn copy_program(from: &Path, to: &Path) {
    assert!(Command::new("cp").args([from, to]).status().unwrap().success());
}

pub fn shm(socket: &Path, words: &[&str]) -> Output {
    nerite(&[&["shm", "--session-socket", socket.to_str().unwrap()], words].concat())
}

#[track_caller]
pub fn text(output: Output) -> String {
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?} steers the terminal");
    text
}

#[track_caller]
pub fn refusal(output: Output, status: i32) -> String {
    assert_eq!((output.status.code(), output.stdout.len()), (Some(status), 0), "{output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    // Who was asked is said first, if anybody was.
    match stderr.split_once('\n') {
        Some((notice, rest)) if notice.starts_with("nerite shm: asking the server ") => rest.to_owned(),
        _ => stderr,
    }
}

#[track_caller]
pub fn json(socket: &Path, words: &[&str]) -> Value {
    serde_json::from_str(&text(shm(socket, &[words, &["--json"]].concat()))).unwrap()
}

/// The line that says this of the region, cell by cell.
#[track_caller]
pub fn row(table: &str, name: &str) -> Vec<String> {
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let mut rows = table.lines().map(cells).filter(|cells| cells.get(1).is_some_and(|first| first == name));
    rows.next().unwrap_or_else(|| panic!("no {name} in\n{table}"))[1..].to_vec()
}

/// A server of its own process, with the model `echo`.
pub struct Server {
    pub child: std::process::Child,
    pub directory: tempfile::TempDir,
    pub port: u16,
}

impl Server {
    pub fn start() -> Server {
        let directory = tempfile::tempdir().unwrap();
        let model = directory.path().join("models/echo");
        fs::create_dir_all(model.join("1")).unwrap();
        let config = "backend: \"identity\" input [{ name: \"IN\" data_type: TYPE_INT32 dims: [-1] }]
                      output [{ name: \"OUT\" data_type: TYPE_INT32 dims: [-1] }]";
        fs::write(model.join("config.pbtxt"), config).unwrap();
        let [port] = free_ports();
        let mut child = Command::new(env!("CARGO_BIN_EXE_nerite"))
            .args(["serve", "--allow-grpc=false", "--allow-metrics=false", "--http-address=127.0.0.1"])
            .arg(format!("--http-port={port}"))
            .arg(format!("--session-socket={}", directory.path().join("s").display()))
            .arg(format!("--model-repository={}", directory.path().join("models").display()))
            .stdout(Stdio::piped())
            .stderr(File::create(directory.path().join("errors")).unwrap())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("Started sessions at")));
        Server { child, directory, port }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
