//! What is left of a client that was killed?
//!
//! The client is this program again, in a process of its own. In the long mode (`NERITE_KILLS=1000`) it is killed that often,
//! each time a little later.
#![allow(clippy::unwrap_used)]

#[path = "session/test_server.rs"]
mod test_server;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nerite_client::{DataType, Request, Session, Tensor};
use nerite_shm::{LeaseCounts, OwnedRegion};
use test_server::TestServer;

const SOCKET: &str = "NERITE_TEST_SOCKET";

/// The client's life, until somebody ends it. Without the variable, this is a test that tests nothing.
#[test]
fn client() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let session = Session::connect(&socket).await.unwrap();
        let key = format!("/nerite-session-kill-{}", std::process::id());
        let mut region = OwnedRegion::create(&key, 1 << 20).unwrap();
        session.register_system_region("mine", &key, 0, 1 << 20).await.unwrap();
        region.unlink().unwrap();
        let lease = session.borrow(8 << 20).await.unwrap();
        lease.write(0, &vec![3i32; 2 << 20]).unwrap();
        let held = Request::new("held")
            .input_in_window("IN", DataType::Int32, &[1 << 20], lease.window(0, 4 << 20))
            .output_in_window("OUT", lease.window(4 << 20, 4 << 20));
        let waiting = tokio::spawn({
            let session = session.clone();
            async move { session.infer(&held).await.map(drop) }
        });
        println!("ready");
        let echo = Request::new("echo").input(Tensor::from_slice("IN", &[2], &[1i32, 2]).unwrap());
        let mut kept = Vec::new();
        loop {
            kept.push(session.infer_leased(&echo, &["OUT"]).await.unwrap());
            if kept.len() == 40 {
                kept.clear();
                assert!(!waiting.is_finished());
            }
        }
    });
}

fn start(server: &TestServer) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "client", "--nocapture"])
        .env(SOCKET, &server.socket)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.ends_with("ready")));
    child
}

/// Descriptors of this process, and mappings of leases and of clients' objects.
fn open() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| line.contains("nerite-lease") || line.contains("nerite-session")).count();
    (std::fs::read_dir("/proc/self/fd").unwrap().count(), shared)
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the kill comes at some moment")]
#[ignore = "alone: counts descriptors of the process"]
fn a_killed_client_leaves_nothing_behind() {
    if std::env::var_os(SOCKET).is_some() {
        return;
    }
    let kills: u64 = std::env::var("NERITE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let _context = runtime.enter();
    let server = TestServer::new();
    let before = open();
    let mut longest = Duration::ZERO;
    for kill in 0..kills {
        let mut child = start(&server);
        std::thread::sleep(Duration::from_micros(kill * 7919 % 20_000));
        assert!(server.pools.counts().bytes >= 8 << 20);
        child.kill().unwrap();
        child.wait().unwrap();
        // The request in flight still holds the client's lease, and only that one.
        let gone = || server.pools.counts() == LeaseCounts { leases: 1, bytes: 8 << 20, ..LeaseCounts::default() };
        // So does the lease its descriptor.
        let kept = || server.pools.counts().leases as usize;
        longest = longest.max(TestServer::until("the end of the session", || {
            server.held.count() == server.held.cancelled()
                && (gone() || server.held.count() == 0)
                && open().0 == before.0 + kept()
        }));
        while server.held.count() > 0 {
            server.held.answer();
        }
        longest = longest.max(TestServer::until("the end of its memory", || {
            server.pools.counts() == LeaseCounts::default() && open() == before
        }));
    }
    println!("{kills} clients killed, everything back after {longest:?} at the most");
}
