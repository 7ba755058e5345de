//! What does a request cost on its way through a session and back?
//!
//! `cargo bench -p nerite-server`. The server runs in this process, on threads of its own. The time is that of one request after the other, each with
//! an input and an output of 64 bytes in shared memory: `plain` sends names and shapes each time, `prepared` sends the number of a prepared request.
#![allow(clippy::unwrap_used)]

#[path = "../tests/session/test_server.rs"]
mod test_server;

use criterion::{Criterion, criterion_group, criterion_main};
use nerite_client::{DataType, RegionRef, Request, Session};
use nerite_shm::OwnedRegion;
use test_server::TestServer;
use tokio::runtime::{Builder, Runtime};

const REGION: &str = "region";
const BYTES: u64 = 64;

fn request(criterion: &mut Criterion) {
    let theirs = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = theirs.block_on(async { TestServer::new() });
    let mine = Builder::new_current_thread().enable_all().build().unwrap();
    let key = format!("/nerite-session-bench-{}", std::process::id());
    let _region = OwnedRegion::create(&key, 4096).unwrap();
    let (session, request) = mine.block_on(client(&server, &key));
    let prepared = mine.block_on(session.prepare(&request)).unwrap();
    let mut group = criterion.benchmark_group("session");
    group.bench_function("plain", |bencher| bencher.iter(|| wait(&mine, session.infer(&request))));
    group.bench_function("prepared", |bencher| bencher.iter(|| wait(&mine, prepared.call())));
    group.finish();
}

/// A session that has the region, and a request in it.
async fn client(server: &TestServer, key: &str) -> (Session, Request) {
    let session = Session::connect(&server.socket).await.unwrap();
    session.register_system_region(REGION, key, 0, 4096).await.unwrap();
    let window = |offset| RegionRef { name: REGION.into(), offset, byte_size: BYTES };
    let request = Request::new("echo")
        .input_in_window("IN", DataType::Int32, &[16], window(0))
        .output_in_window("OUT", window(BYTES));
    (session, request)
}

fn wait<T>(runtime: &Runtime, answer: impl Future<Output = Result<T, nerite_client::Error>>) -> T {
    runtime.block_on(answer).unwrap()
}

criterion_group!(benches, request);
criterion_main!(benches);
