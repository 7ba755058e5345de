//! Which thread maps and unmaps memory for a client?

use std::fs::File;
use std::thread;
use std::time::{Duration, Instant};

use nerite_wire::proto::messages::infer_parameter::ParameterChoice;
use nerite_wire::proto::messages::{
    InferParameter, SystemSharedMemoryRegisterRequest, SystemSharedMemoryUnregisterRequest,
};

use crate::peer::{finish, framed, request};
use crate::test_server::TestServer;

const LITTLE_BYTES: u64 = 1 << 20;
const MUCH_BYTES: u64 = 1 << 30;
const PATIENCE: Duration = Duration::from_mins(1);

#[tokio::test]
async fn a_client_with_much_mapped_memory_keeps_no_thread_of_others() {
    let server = TestServer::new();
    let worked_by = |mapped_bytes| server.api.change_mappings(mapped_bytes, || Ok(thread::current().id()));
    assert_eq!(worked_by(LITTLE_BYTES).await, Ok(thread::current().id()));
    assert_ne!(worked_by(MUCH_BYTES).await, Ok(thread::current().id()));
}

/// How often the queue of mappings for the unmapping thread was locked.
fn passed_on() -> u64 {
    let taken = nerite_locks::counts();
    taken.iter().filter(|taken| taken.place.file().ends_with("shm/src/deferred.rs")).map(|taken| taken.times).sum()
}

/// Whether this process has the object mapped whose file at `path` was removed.
fn is_mapped(path: &str) -> bool {
    let end = format!("{path} (deleted)");
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().any(|line| line.ends_with(&end))
}

#[tokio::test]
async fn a_region_that_is_unregistered_while_a_request_uses_it_is_not_unmapped_by_the_front_thread() {
    let key = format!("/nerite-grpc-unmapped-{}", std::process::id());
    let path = format!("/dev/shm{key}");
    File::create(&path).unwrap().set_len(MUCH_BYTES).unwrap();
    let server = TestServer::new();
    let peer = server.peer().await;
    let (name, offset, byte_size) = ("r".to_owned(), 0, MUCH_BYTES);
    let register = SystemSharedMemoryRegisterRequest { name: name.clone(), key: key.clone(), offset, byte_size };
    assert_eq!(peer.call("SystemSharedMemoryRegister", &register).await.status(), (0, ""));

    let mut ask = request("held", "last", 1);
    ask.raw_input_contents.clear();
    let region = [
        ("shared_memory_region", ParameterChoice::StringParam(name.clone())),
        ("shared_memory_byte_size", ParameterChoice::Int64Param(4)),
    ];
    let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
    ask.inputs[0].parameters = region.map(|(key, choice)| (key.to_owned(), parameter(choice))).into();
    let (feed, calling) = peer.begin("ModelInfer", &[]).await.unwrap();
    feed.send(framed(&ask).into()).unwrap();
    drop(feed);
    server.held.wait(1).await;
    let unregister = SystemSharedMemoryUnregisterRequest { name };
    assert_eq!(peer.call("SystemSharedMemoryUnregister", &unregister).await.status(), (0, ""));
    std::fs::remove_file(&path).unwrap();
    assert!(is_mapped(&path));

    let before = passed_on();
    server.held.answer("last");
    assert_eq!(finish(calling).await.status(), (0, ""));
    let begun = Instant::now();
    while is_mapped(&path) && begun.elapsed() < PATIENCE {
        tokio::task::yield_now().await;
    }
    assert!(!is_mapped(&path));
    // A release build counts no locks.
    assert!(passed_on() > before || !cfg!(debug_assertions));
}
