//! Which thread maps and unmaps memory for a client?

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nerite_api::Api;
use nerite_request::Peer;
use nerite_shm::{Options, Registry, Rights};
use nerite_wire::proto::messages::infer_parameter::ParameterChoice;
use nerite_wire::proto::messages::{
    InferParameter, ServerLiveRequest, SystemSharedMemoryRegisterRequest, SystemSharedMemoryUnregisterRequest,
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

/// Dropped by the unmapping thread after its region was unmapped. Says so, and waits for an answer.
struct Halt {
    begun: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl Drop for Halt {
    fn drop(&mut self) {
        let _ = self.begun.send(());
        let _ = self.go_on.get_mut().unwrap().recv_timeout(PATIENCE);
    }
}

/// Blocks the unmapping thread until the sender is used or dropped.
fn halt_unmapper() -> Sender<()> {
    let ((begun, begins), (answer, go_on)) = (channel(), channel());
    let key = format!("/nerite-grpc-halts-{}", std::process::id());
    let path = format!("/dev/shm{key}");
    File::create(&path).unwrap().set_len(LITTLE_BYTES).unwrap();
    let (registry, halt) = (Registry::new(Options::default()), Halt { begun, go_on: Mutex::new(go_on) });
    registry.register_system_as(&Rights::Any, Box::new(halt), "r", &key, 0, LITTLE_BYTES).unwrap();
    let user = registry.locate("r", 0, 4).unwrap();
    registry.unregister_system("r").unwrap();
    std::fs::remove_file(&path).unwrap();
    drop(user);
    begins.recv_timeout(PATIENCE).unwrap();
    answer
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

    let mut message = request("held", "last", 1);
    message.raw_input_contents.clear();
    let region = [
        ("shared_memory_region", ParameterChoice::StringParam(name.clone())),
        ("shared_memory_byte_size", ParameterChoice::Int64Param(4)),
    ];
    let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
    message.inputs[0].parameters = region.map(|(key, choice)| (key.to_owned(), parameter(choice))).into();
    let (feed, calling) = peer.begin("ModelInfer", &[]).await.unwrap();
    feed.send(framed(&message).into()).unwrap();
    drop(feed);
    server.held.wait(1).await;
    let unregister = SystemSharedMemoryUnregisterRequest { name };
    assert_eq!(peer.call("SystemSharedMemoryUnregister", &unregister).await.status(), (0, ""));
    std::fs::remove_file(&path).unwrap();
    assert!(is_mapped(&path));

    let answer = halt_unmapper();
    server.held.answer("last");
    assert_eq!(finish(calling).await.status(), (0, ""));
    // The front thread has ended the request when it answers the next call.
    assert_eq!(peer.call("ServerLive", &ServerLiveRequest {}).await.status(), (0, ""));
    assert!(is_mapped(&path));
    answer.send(()).unwrap();
    let begun = Instant::now();
    while is_mapped(&path) && begun.elapsed() < PATIENCE {
        tokio::task::yield_now().await;
    }
    assert!(!is_mapped(&path));
}

#[tokio::test]
async fn a_region_of_another_owner_that_root_unregisters_counts_as_much_mapped_memory() {
    let key = format!("/nerite-grpc-owner-{}", std::process::id());
    let path = format!("/dev/shm{key}");
    File::create(&path).unwrap().set_len(MUCH_BYTES).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let server = TestServer::new();
    let (other, root) =
        (server.api.for_peer(Peer::User { uid: 4_000_000_001 }), server.api.for_peer(Peer::User { uid: 0 }));
    let worked_by = |api: &Api| {
        let api = api.clone();
        async move { api.change_own_regions(|_| Ok(thread::current().id())).await }
    };
    assert_eq!(worked_by(&root).await, Ok(thread::current().id()));
    other.register_system("r", &key, 0, MUCH_BYTES).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_ne!(worked_by(&root).await, Ok(thread::current().id()));
    assert_ne!(worked_by(&other).await, Ok(thread::current().id()));
    let third = server.api.for_peer(Peer::User { uid: 4_000_000_002 });
    assert_eq!(worked_by(&third).await, Ok(thread::current().id()));
    root.unregister_system("r").unwrap();
    assert!(!is_mapped(&path));
}
