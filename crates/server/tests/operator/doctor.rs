//! Does `nerite doctor` find what is wrong, and nothing else?

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nerite_shm::OwnedRegion;
use serde_json::Value;

use crate::run::{NOBODY, Server, copy_program, key, nerite, program_for_all, refusal};

/// A process that waits until a test lets it go.
struct Waiting(Child);

impl Waiting {
    /// Runs `script`, which says `ready` when it is.
    fn start(command: &mut Command) -> Option<Waiting> {
        let mut child = Waiting(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?);
        let lines = BufReader::new(child.0.stdout.take()?).lines();
        lines.map_while(Result::ok).any(|line| line == "ready").then_some(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The checks by name, and the exit code.
fn doctor(command: &mut Command) -> (Value, Option<i32>) {
    let output = command.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    (report, output.status.code())
}

fn run_doctor(words: &[&str]) -> (Value, Option<i32>) {
    doctor(Command::new(env!("CARGO_BIN_EXE_nerite")).args(["doctor", "shm", "--json"]).args(words))
}

/// That some check of this name says so.
#[track_caller]
fn check(report: &Value, check: &str, verdict: &str, found: &[&str]) {
    let all = report["checks"].as_array().unwrap();
    let says = |one: &&Value| found.iter().all(|part| one["found"].as_str().unwrap().contains(part));
    let one = all.iter().filter(|one| one["check"] == check).find(says);
    let one = one.unwrap_or_else(|| panic!("no {check} says {found:?} in {report:#}"));
    assert_eq!(one["verdict"], verdict, "{one:#}");
    assert!(verdict != "fail" || !one["cure"].as_str().unwrap().is_empty(), "a failure comes with its cure");
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_client_beside_its_server_is_found_well() {
    let server = Server::start();
    let socket = server.directory.path().join("s");
    let (key, me) = (key("doctor-well"), std::process::id().to_string());
    let mut object = OwnedRegion::create(&key, 4096).unwrap();
    let words = ["--session-socket", socket.to_str().unwrap(), "--client-pid", &me];
    let (report, _) = run_doctor(&words);
    check(&report, "session socket", "good", &[&format!("process {} listens at", server.child.id())]);
    check(&report, "client", "good", &[&format!("process {me} (")]);
    check(&report, "client /dev/shm", "good", &["is the server's"]);
    check(&report, "client keys", "good", &["the server may read and write"]);
    check(&report, "leases", "good", &[]);
    check(&report, "keys", "good", &[]);
    object.unlink().unwrap();
    check(&run_doctor(&words).0, "client key", "note", &[&key, "is unlinked"]);
}

#[test]
fn a_server_of_another_user_may_not_open_the_clients_key() {
    if !is_root() {
        return;
    }
    let mut sleeper = Command::new("sh");
    sleeper.args(["-c", "echo ready; read line"]).uid(NOBODY).gid(NOBODY);
    let server = Waiting::start(&mut sleeper).unwrap();
    let (key, me) = (key("doctor-uids"), std::process::id().to_string());
    let _object = OwnedRegion::create(&key, 4096).unwrap();
    let (report, code) = run_doctor(&["--server-pid", &server.pid(), "--client-pid", &me]);
    let uids =
        "is user 0's, group 0's, mode 0600; the server is user 65534, group 65534, and may not read and write it";
    check(&report, "client key", "fail", &[&key, uids]);
    assert_eq!(code, Some(1));
    check(&report, "who looks", "note", &["tried as user 0", "the server is user 65534"]);
}

/// `script` where /dev/shm is a tmpfs of its own; `None` if this system does not let us.
fn apart(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &format!("mount -t tmpfs -o size=64m tmpfs /dev/shm && {script}")]);
    command
}

#[test]
fn a_shared_memory_of_its_own_is_reported_with_both_devices() {
    let Some(client) = Waiting::start(&mut apart("echo ready && read line")) else { return };
    let (report, code) = run_doctor(&["--client-pid", &client.pid()]);
    check(&report, "client /dev/shm", "fail", &["is device ", "the server's is device "]);
    check(&report, "client keys", "note", &["it maps no shared memory object"]);
    assert_eq!(code, Some(1));
}

#[test]
fn a_small_or_full_shared_memory_is_found() {
    if Waiting::start(&mut apart("echo ready && read line")).is_none() {
        return;
    }
    // A server of this user at the default place would be looked at instead.
    let program = format!("XDG_RUNTIME_DIR=/dev/shm exec {} doctor --json", env!("CARGO_BIN_EXE_nerite"));
    let (report, _) = doctor(&mut apart(&program));
    check(&report, "/dev/shm", "note", &["tmpfs of 64 MiB", "Docker's default"]);
    let full = format!("head -c 64M /dev/zero > /dev/shm/full; {program}");
    let (report, code) = doctor(&mut apart(&full));
    check(&report, "/dev/shm", "fail", &["0 bytes free; clients need at least 4 MiB"]);
    check(&report, "keys", "fail", &["No space left on device"]);
    check(&report, "leases", "good", &[]);
    assert_eq!(code, Some(1));
}

#[test]
fn few_descriptors_are_found() {
    let (_directory, program) = program_for_all();
    let limited = format!("ulimit -n 256 && exec '{}' doctor --json", program.display());
    let mut command = Command::new("sh");
    command.args(["-c", &limited]);
    if is_root() {
        // Who may raise the limit again does not mind it.
        command.uid(NOBODY).gid(NOBODY);
    }
    let (report, code) = doctor(&mut command);
    check(&report, "open files", "fail", &["is 256, and it needs 1024"]);
    assert_eq!(code, Some(1));
}

#[test]
fn who_is_not_there_and_what_is_not_understood_is_said() {
    let (report, code) = run_doctor(&["--client-pid", "4194305", "--server-pid", "4194306"]);
    check(&report, "client", "fail", &["no process 4194305 is seen here"]);
    check(&report, "server", "fail", &["no process 4194306 is seen here"]);
    assert_eq!(code, Some(1));
    let refused = refusal(nerite(&["doctor", "gpu"]), 2);
    assert!(refused.starts_with("nerite doctor: there is no topic 'gpu'\n`nerite doctor --help`"), "{refused}");
}

/// `nerite doctor` with these words, and no Python but what they name.
fn run_python_doctor(words: &[&str]) -> (Value, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nerite"));
    command.args(["doctor", "--json"]).args(words).env("PATH", "/nonexistent").env_remove("VIRTUAL_ENV");
    doctor(&mut command)
}

/// A program that is this shell script.
fn script(folder: &std::path::Path, lines: &str) -> String {
    let (text, path) = (folder.join("text"), folder.join("python3"));
    std::fs::write(&text, format!("#!/bin/sh\n{lines}\n")).unwrap();
    std::fs::set_permissions(&text, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    copy_program(&text, &path);
    path.display().to_string()
}

#[test]
fn the_python_of_models_is_started_to_hear_what_it_is() {
    let server = tempfile::tempdir().unwrap();
    let good = script(server.path(), "echo nerite-python 3.12.1; echo nerite-numpy 2.4.0");
    let (report, code) = run_python_doctor(&["python", "--interpreter", &good]);
    check(&report, "python", "good", &[&good, "is Python 3.12.1 with numpy 2.4.0"]);
    // The interpreter, and what would hold a sandbox.
    assert_eq!((report["checks"].as_array().unwrap().len(), code), (2, Some(0)));
    let old = script(server.path(), "echo nerite-python 3.8.18");
    let (report, code) = run_python_doctor(&["python", "--interpreter", &old]);
    check(&report, "python", "fail", &[&old, "is Python 3.8.18, and models need 3.9 or newer"]);
    assert_eq!(code, Some(1));
    let (report, _) = run_python_doctor(&["python", "--environment", "/nonexistent/env.tar.gz"]);
    check(&report, "python", "fail", &["Failed to get the canonical path for /nonexistent/env.tar.gz."]);
    // Who asks in general may have no Python models.
    check(&run_python_doctor(&[]).0, "python", "note", &["there is no python3 on the PATH (/nonexistent)"]);
}
