//! Which thread maps and unmaps memory for a client?

use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nerite_api::Api;
use nerite_request::Peer;
use nerite_shm::limits::{FREED_HERE_BYTES_MAX, FREEING_THREADS_MAX};
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

/// Dropped by a thread that frees objects, after its region was unmapped. Says so, and waits for an answer.
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

/// Held by tests that block all these threads. Two of them would wait for each other.
static HALTING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Blocks all threads that free clients' objects until the senders are used or dropped.
fn halt_freeing() -> Vec<Sender<()>> {
    let key = format!("/nerite-grpc-halts-{}", std::process::id());
    let path = format!("/dev/shm{key}");
    File::create(&path).unwrap().set_len(LITTLE_BYTES).unwrap();
    let halt_one = |_| {
        let ((begun, begins), (answer, go_on)) = (channel(), channel());
        // Each registry is an owner.
        let (registry, halt) = (Registry::new(Options::default()), Halt { begun, go_on: Mutex::new(go_on) });
        registry.register_system_as(&Rights::Any, Box::new(halt), "r", &key, 0, LITTLE_BYTES).unwrap();
        let user = registry.locate("r", 0, 4).unwrap();
        registry.unregister_system("r").unwrap();
        drop(user);
        begins.recv_timeout(PATIENCE).unwrap();
        answer
    };
    let answers = (0..FREEING_THREADS_MAX).map(halt_one).collect();
    std::fs::remove_file(&path).unwrap();
    answers
}

#[track_caller]
fn is_unmapped(path: &str) {
    let begun = Instant::now();
    while is_mapped(path) && begun.elapsed() < PATIENCE {
        thread::yield_now();
    }
    assert!(!is_mapped(path));
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

    let _alone = HALTING.lock().await;
    let answers = halt_freeing();
    server.held.answer("last");
    assert_eq!(finish(calling).await.status(), (0, ""));
    // The front thread has ended the request when it answers the next call.
    assert_eq!(peer.call("ServerLive", &ServerLiveRequest {}).await.status(), (0, ""));
    assert!(is_mapped(&path));
    drop(answers);
    is_unmapped(&path);
}

/// As the session and HTTP, which unregister in the same way.
#[tokio::test]
async fn a_call_that_unregisters_an_unlinked_object_waits_for_its_pages_and_keeps_no_thread() {
    let key = format!("/nerite-grpc-freed-{}", std::process::id());
    let path = format!("/dev/shm{key}");
    std::fs::write(&path, vec![1; 2 * FREED_HERE_BYTES_MAX as usize]).unwrap();
    let server = TestServer::new();
    let peer = server.peer().await;
    let register = SystemSharedMemoryRegisterRequest { name: "r".to_owned(), key, offset: 0, byte_size: 4096 };
    assert_eq!(peer.call("SystemSharedMemoryRegister", &register).await.status(), (0, ""));
    std::fs::remove_file(&path).unwrap();
    let _alone = HALTING.lock().await;
    let answers = halt_freeing();
    let (feed, mut calling) = peer.begin("SystemSharedMemoryUnregister", &[]).await.unwrap();
    feed.send(framed(&SystemSharedMemoryUnregisterRequest { name: "r".to_owned() }).into()).unwrap();
    drop(feed);
    for _ in 0..3 {
        assert_eq!(peer.call("ServerLive", &ServerLiveRequest {}).await.status(), (0, ""));
    }
    assert!(is_mapped(&path));
    assert!(tokio::time::timeout(Duration::from_millis(20), &mut calling).await.is_err(), "it waits");
    drop(answers);
    assert_eq!(finish(calling).await.status(), (0, ""));
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
    is_unmapped(&path);
}

#[tokio::test]
async fn a_client_with_many_small_regions_keeps_no_thread_of_others() {
    const REGIONS: u32 = 600;
    let key = format!("/nerite-grpc-many-{}", std::process::id());
    let path = format!("/dev/shm{key}");
    File::create(&path).unwrap().set_len(4096).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let server = TestServer::new();
    let client = server.api.for_peer(Peer::User { uid: 4_000_000_003 });
    for number in 0..REGIONS {
        client.register_system(&format!("r{number}"), &key, 0, 4096).unwrap();
    }
    std::fs::remove_file(&path).unwrap();
    let unregister = |api: &Api| api.unregister_system("").map(|()| thread::current().id());
    assert_ne!(client.change_own_regions(unregister).await, Ok(thread::current().id()));
    assert_eq!(client.change_own_regions(unregister).await, Ok(thread::current().id()));
}

/// The threads on which the groups of a user were looked up.
static LOOKED_UP_ON: Mutex<Vec<thread::ThreadId>> = Mutex::new(Vec::new());
/// The user directory answers when the sender is used.
static ANSWERS: Mutex<Option<Receiver<()>>> = Mutex::new(None);

/// Every user is in the group of the server's own objects.
fn slow_directory(_uid: u32) -> Vec<u32> {
    LOOKED_UP_ON.lock().unwrap().push(thread::current().id());
    if let Some(answers) = &*ANSWERS.lock().unwrap() {
        let _ = answers.recv_timeout(PATIENCE);
    }
    vec![std::fs::metadata("/proc/self").unwrap().gid()]
}

#[tokio::test]
async fn a_slow_user_directory_keeps_no_thread_of_others_and_is_asked_only_if_groups_decide() {
    let key = format!("/nerite-grpc-groups-{}", std::process::id());
    let path = format!("/dev/shm{key}");
    File::create(&path).unwrap().set_len(LITTLE_BYTES).unwrap();
    let allow = |mode| std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    let server = TestServer::with_user_directory(slow_directory);
    let peer = |uid| server.api.for_peer(Peer::User { uid });
    let register = |api: Api, name: &str| {
        let (name, key) = (name.to_owned(), key.clone());
        async move { api.register_own_system(name, key, 0, LITTLE_BYTES).await }
    };
    let looked_up = || LOOKED_UP_ON.lock().unwrap().len();

    for (mode, permitted) in [(0o666, true), (0o600, false)] {
        allow(mode);
        assert_eq!(register(peer(4_000_000_001), "r").await.is_ok(), permitted, "{mode:04o}");
    }
    assert_eq!(looked_up(), 0);

    allow(0o660);
    let (answer, answers) = channel();
    *ANSWERS.lock().unwrap() = Some(answers);
    let waiting = tokio::spawn(register(peer(4_000_000_002), "first"));
    while looked_up() == 0 {
        tokio::task::yield_now().await;
    }
    // The front thread serves others, and a registration that does not look groups up does not wait either.
    assert!(peer(4_000_000_001).system_status("r").is_ok());
    let refused = peer(4_000_000_002).register_system("second", &key, 0, LITTLE_BYTES).unwrap_err();
    assert!(refused.message.contains("the groups of user 4000000002 decide"), "{}", refused.message);
    assert!(!waiting.is_finished());
    answer.send(()).unwrap();
    assert_eq!(waiting.await.unwrap(), Ok(()));
    assert_eq!(register(peer(4_000_000_002), "second").await, Ok(()));
    assert_eq!(looked_up(), 1);
    assert!(LOOKED_UP_ON.lock().unwrap().iter().all(|thread| *thread != thread::current().id()));
    std::fs::remove_file(&path).unwrap();
}
